"""What a compiled program moves between devices, read from its HLO text."""

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import NamedTuple

_KINDS = "all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute|ragged-all-to-all|collective-broadcast"
_HEADER = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_COLLECTIVE = re.compile(rf" = (.*?) ({_KINDS})(?:-start)?\(")
_LOOP = re.compile(r" while\(.*body=%?([\w.\-]+)")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_CALLS = re.compile(r"(?:calls|to_apply|true_computation|false_computation)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_STARTED = re.compile(r"\(\((.*?)\), (.*)\)$")
_ARRAY = re.compile(r"\b([a-z]+\d*\w*)\[([\d,]*)\]")
_BYTES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s16": 2, "u16": 2, "f64": 8, "s64": 8, "u64": 8}


class Moved(NamedTuple):
    """By collectives of one kind during one run of the program."""

    times: int
    bytes: int
    """Of the whole arrays that are gathered, reduced, scattered or exchanged, as one device sees them."""


def collectives(hlo: str) -> dict[str, Moved]:
    """By kind. Loops count as often as they turn; of a loop whose turns are not known, one is counted."""
    computations, entry = _computations(hlo)
    totals: dict[str, Moved] = {}
    for kind, moved, times in _moved(computations, entry):
        before = totals.get(kind, Moved(0, 0))
        totals[kind] = Moved(before.times + times, before.bytes + times * moved)
    return totals


def _computations(hlo: str) -> tuple[Mapping[str, list[str]], str]:
    """The lines of every computation, and the name of the one that is run."""
    computations: dict[str, list[str]] = defaultdict(list)
    name = entry = ""
    for line in hlo.splitlines():
        if header := _HEADER.match(line):
            name = header[2]
            entry = name if header[1] else entry
        else:
            computations[name].append(line)
    return computations, entry


def _moved(computations: Mapping[str, list[str]], name: str, times: int = 1) -> Iterator[tuple[str, int, int]]:
    """Kind, bytes, and how often, of every collective that a computation comes to."""
    for line in computations.get(name, ()):
        if found := _COLLECTIVE.search(line):
            yield found[2], _bytes(found[1], found[2], line), times
        if loop := _LOOP.search(line):
            trips = _TRIPS.search(line)
            yield from _moved(computations, loop[1], times * (int(trips[1]) if trips else 1))
        branches = [branch.strip(" %") for found in _BRANCHES.findall(line) for branch in found.split(",")]
        for called in (*_CALLS.findall(line), *branches):
            yield from _moved(computations, called, times)


def _bytes(shape: str, kind: str, line: str) -> int:
    """A start tells its operands and its results, ((…), …): the larger are the whole arrays. Else there are results."""
    if started := _STARTED.match(shape):
        return max(_sizes(started[1]), _sizes(started[2]))
    return _sizes(shape) * (_group_size(line) if kind == "reduce-scatter" else 1)


def _group_size(line: str) -> int:
    """Devices that take part together: [groups,size], {{members},…}, or a mesh with the names of the axes in use."""
    if found := re.search(r"replica_groups=\[\d+,(\d+)\]", line):
        return int(found[1])
    if found := re.search(r"replica_groups=\{\{([\d,]+)\}", line):
        return found[1].count(",") + 1
    if found := re.search(r"replica_groups=mesh\[([^\]]*)\] \{([^}]*)\}", line):
        sizes = dict(re.findall(r"'(\w+)'=(\d+)", found[1]))
        return math.prod(int(sizes[axis]) for axis in re.findall(r"'(\w+)'", found[2]))
    return 1


def _sizes(shapes: str) -> int:
    return sum(_size(element, dimensions) for element, dimensions in _ARRAY.findall(shapes))


def _size(element: str, dimensions: str) -> int:
    size = _BYTES.get(element, 4)
    for dimension in filter(None, dimensions.split(",")):
        size *= int(dimension)
    return size
