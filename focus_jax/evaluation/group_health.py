"""Whether groups starve or take over, from the `groups` rows of a checkpoint.

A group starves below a tenth of an even share of the held-out tokens (0.1/K), and takes over above the middle between
an even share and everything ((1 + 1/K)/2: 62.5 % of four groups, 53 % of sixteen).
"""

from collections.abc import Iterator
from typing import NamedTuple

STARVED = 0.1


class Trouble(NamedTuple):
    name: str
    message: str
    layer: int
    shares: dict[int, float]
    """Of the groups in trouble."""


def troubles(groups_row: dict) -> Iterator[Trouble]:
    layer, load = groups_row["layer"], groups_row["load"]
    even = 1 / len(load)
    if len(load) == 1:
        return
    starved = {group: share for group, share in enumerate(load) if share < STARVED * even}
    if starved:
        yield Trouble("starved_group", _message(layer, starved, "starved", even), layer, starved)
    dominant = {group: share for group, share in enumerate(load) if share > (1 + even) / 2}
    if dominant:
        yield Trouble("dominant_group", _message(layer, dominant, "taking over", even), layer, dominant)


def _message(layer: int, shares: dict[int, float], what: str, even: float) -> str:
    listed = ", ".join(f"group {group} ({share:.2%})" for group, share in shares.items())
    return f"layer {layer}: {what}: {listed} of the held-out tokens; even would be {even:.2%}"
