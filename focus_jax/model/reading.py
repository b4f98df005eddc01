"""How the Focus layers of a model read distant tokens. The same parameters can be read softly or by a hard pattern."""

from dataclasses import dataclass
from typing import Literal

from focus_jax import config


@dataclass(frozen=True)
class Reading:
    routing: Literal["soft", "hard"]
    """soft: every distant pair, gated. hard: only pairs whose groups meet, the others are not computed."""
    top_k: int = 0
    """Groups that a query reads when the routing is hard."""
    gated: bool = True
    """Whether the pairs that are read carry their gate."""


def as_trained(attention: config.Dense | config.Focus, step: int) -> Reading | None:
    """The pattern of training after `step` steps; None where attention is dense and there is nothing to choose."""
    if isinstance(attention, config.Dense):
        return None
    if attention.training == "soft" or step < attention.hard_from_step:
        return Reading("soft")
    return Reading("hard", attention.top_k, gated=attention.router == "gate" and attention.top_k > 0)
