"""Does anything at a position depend on a later token? Changes suffixes of real sequences and looks at what is before.

B sequences · T tokens · V vocabulary · K groups · M groups that a query reads.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from focus_jax import config
from focus_jax.evaluation.readings import NamedReading, readings_of
from focus_jax.model import Reading
from focus_jax.training.state import graph_of, merge

LOGIT_TOLERANCE = 1e-4
"""Float32 rounding of a logit: other suffixes may change the order of sums."""
MARGIN = 1e-5
"""Two log-affinities closer than this are a tie that rounding may break."""


class Finding(NamedTuple):
    largest_logit_change: float
    """Over all earlier positions, cuts and sequences."""
    changed_tokens: int
    """Earlier tokens (counted per layer) that went to other groups although it was not a tie."""
    checked_tokens: int

    @property
    def causal(self) -> bool:
        return self.largest_logit_change <= LOGIT_TOLERANCE and self.changed_tokens == 0


def check_model(run: config.Config, params: Any, carried: Any, inputs_BT: np.ndarray, reading: NamedReading) -> Finding:
    """Cuts after a quarter, a half, three quarters and all but one of the tokens; the suffix is another sequence's."""
    forward = jax.jit(
        partial(_forward, run, graph_of(run), _groups_read(run, reading.reading)), static_argnames="reading"
    )
    look = partial(forward, params, carried, reading=reading.reading)
    original = look(inputs_BT)
    tokens = inputs_BT.shape[1]
    worst, changed, checked = 0.0, 0, 0
    for cut in sorted({tokens // 4, tokens // 2, 3 * tokens // 4, tokens - 1} - {0}):
        suffixes_BT = _other_suffixes(inputs_BT, cut, run.model.vocab_size)
        altered = look(np.concatenate([inputs_BT[:, :cut], suffixes_BT], axis=1))
        worst = max(worst, float(jnp.max(jnp.abs(original.logits_BTV - altered.logits_BTV)[:, :cut])))
        for before, after in zip(original.routed, altered.routed, strict=True):
            switched_BT = jnp.any(before.groups_BTM != after.groups_BTM, axis=-1) & (before.margin_BT > MARGIN)
            changed += int(jnp.sum(switched_BT[:, :cut]))
            checked += inputs_BT.shape[0] * cut
    return Finding(worst, changed, checked)


def causality_report(run: config.Config, models: Any, inputs_BT: np.ndarray) -> tuple[list[dict], bool]:
    """One entry per model and reading, and whether all of them are causal."""
    entries, causal = [], True
    for name, (params, carried) in models.items():
        of_model = config.of_model(run, name)
        for reading in readings_of(of_model):
            finding = check_model(of_model, params, carried, inputs_BT, reading)
            causal &= finding.causal
            entries.append(
                {
                    "model": name,
                    "routing": reading.routing,
                    "top_k": reading.top_k,
                    "gate": reading.gate,
                    **finding._asdict(),
                    "causal": finding.causal,
                }
            )
    return entries, causal


class _Routed(NamedTuple):
    groups_BTM: jax.Array
    margin_BT: jax.Array
    """Smallest gap between neighbours among the M + 1 best log-affinities."""


class _Look(NamedTuple):
    logits_BTV: jax.Array
    routed: list[_Routed]


def _forward(
    run: config.Config,
    graph: nnx.GraphDef,
    groups_read: int,
    params: Any,
    carried: Any,
    inputs_BT: jax.Array,
    *,
    reading: Reading | None,
) -> _Look:
    logits_BTV, layers = merge(graph, params, carried)(inputs_BT, reading)
    return _Look(
        logits_BTV[..., : run.model.vocab_size], [_route(layer.log_affinity_BTK, groups_read) for layer in layers]
    )


def _route(log_affinity_BTK: jax.Array, groups_read: int) -> _Routed:
    best, groups = jax.lax.top_k(log_affinity_BTK, min(groups_read + 1, log_affinity_BTK.shape[-1]))
    gaps = best[..., :-1] - best[..., 1:]
    return _Routed(groups[..., :groups_read], jnp.min(gaps, axis=-1, initial=jnp.inf))


def _groups_read(run: config.Config, reading: Reading | None) -> int:
    """A key belongs to its best group even where queries read none."""
    if isinstance(run.attention, config.Dense) or reading is None:
        return 0
    return max(1, run.attention.top_k if reading.routing == "soft" else reading.top_k)


def _other_suffixes(inputs_BT: np.ndarray, cut: int, vocab_size: int) -> np.ndarray:
    """Suffixes of the neighbouring sequence; a token that happens to agree becomes the next one of the vocabulary."""
    other_BT = np.roll(inputs_BT, 1, axis=0)[:, cut:]
    return np.where(other_BT == inputs_BT[:, cut:], (other_BT + 1) % vocab_size, other_BT)
