"""How the Focus layers of a model read distant tokens. The same parameters can be read softly or by a hard pattern."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Reading:
    routing: Literal["soft", "hard"]
    """soft: every distant pair, gated. hard: only pairs whose groups meet, the others are not computed."""
    top_k: int = 0
    """Groups that a query reads when the routing is hard."""
    gated: bool = True
    """Whether the pairs that are read carry their gate."""


AS_TRAINED = Reading("soft")
