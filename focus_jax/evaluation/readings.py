"""The ways in which a model is read when it is evaluated."""

from typing import NamedTuple

from focus_jax import config
from focus_jax.model import Reading, as_trained
from focus_jax.telemetry.readings import LoggedReading


class NamedReading(NamedTuple):
    """A reading with the labels that go into metrics rows."""

    reading: Reading | None
    """None for a dense model."""
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
    """Dense: one. Focus: as trained (at the end of the run) first, then hard at each further top_k of the evaluation
    (none named: at attention.top_k).

    A pattern trained hard keeps the gate that it was trained with, if any. One trained softly is read hard with the
    gate where the pattern can carry it (gate `log`, membership `query`), and without.
    """
    attention = run.attention
    if isinstance(attention, config.Dense):
        return [NamedReading(None, "none", None, None, True)]
    trained = as_trained(attention, run.training.steps)
    assert trained is not None
    top_ks = run.evaluation.top_k or (attention.top_k,)
    if trained.routing == "soft":
        gates = [True, False] if attention.gate == "log" and attention.membership == "query" else [False]
    else:
        gates = [trained.gated]
    # Without distant pairs there is nothing to gate.
    hard = [Reading("hard", k, gated) for k in top_ks for gated in (gates if k else [False])]
    return [_named(attention, reading) for reading in dict.fromkeys([trained, *hard])]


def _named(attention: config.Focus, reading: Reading) -> NamedReading:
    return NamedReading(
        reading,
        routing=reading.routing,
        top_k=reading.top_k if reading.routing == "hard" else None,
        gate=attention.gate if reading.gated else None,
        causal=attention.balance != "sinkhorn",
    )
