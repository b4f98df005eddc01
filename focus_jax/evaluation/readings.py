"""The ways in which a model is read when it is evaluated."""

from typing import NamedTuple

from focus_jax import config
from focus_jax.model import AS_TRAINED, Reading
from focus_jax.telemetry.readings import LoggedReading


class NamedReading(NamedTuple):
    """A reading with the labels that go into metrics rows."""

    reading: Reading
    routing: str
    """ "none" for a dense model, "soft" or "hard"."""
    top_k: int | None
    gate: str | None
    """The gate that distant pairs carry."""
    causal: bool

    def labels(self) -> dict:
        return {"routing": self.routing, "top_k": self.top_k, "gate": self.gate, "causal": self.causal}

    def logged(self, model: str) -> LoggedReading:
        return LoggedReading(model, self.routing, self.top_k, self.gate, self.causal)


def readings_of(run: config.Config) -> list[NamedReading]:
    """Dense: one. Focus: as trained first, then hard at each top_k of the evaluation (none named: at attention.top_k),
    with the gate where the pattern can carry it (gate `log`, membership `query`), and without."""
    attention = run.attention
    if isinstance(attention, config.Dense):
        return [NamedReading(AS_TRAINED, "none", None, None, True)]
    causal = attention.balance != "sinkhorn"
    hard_gates = ["log", None] if attention.gate == "log" and attention.membership == "query" else [None]
    soft = NamedReading(AS_TRAINED, "soft", None, attention.gate, causal)
    hard = [
        NamedReading(Reading("hard", top_k, gated=gate is not None), "hard", top_k, gate, causal)
        for top_k in run.evaluation.top_k or (attention.top_k,)
        # Without distant pairs there is nothing to gate.
        for gate in (hard_gates if top_k else [None])
    ]
    return [soft, *hard]
