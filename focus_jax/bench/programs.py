"""Programs to be timed: compiled side by side, run in turn."""

import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax

BATCH_SECONDS = 0.03
"""Calls are queued until they take about so long together, so that starting them does not count."""


class Program(NamedTuple):
    name: str
    function: Callable[..., Any]
    arguments: Sequence[Any]


class Compiled(NamedTuple):
    executable: Callable[..., Any]
    arguments: Sequence[Any]

    def seconds(self, calls: int) -> float:
        """Of one call, when so many are queued at once."""
        start = time.perf_counter()
        for _ in range(calls):
            result = self.executable(*self.arguments)
        jax.block_until_ready(result)
        return (time.perf_counter() - start) / calls


def with_gradient(attention: Callable[..., jax.Array], differentiated: int = 3) -> Callable[..., Any]:
    """(do, *arguments) to the output and the gradients of the first arguments: of q, k and v, or of more."""

    def run(do: jax.Array, *arguments: jax.Array) -> Any:
        fixed = arguments[differentiated:]
        o, pull = jax.vjp(lambda *chosen: attention(*chosen, *fixed), *arguments[:differentiated])
        return o, pull(do)

    return run


def compile_all(programs: Sequence[Program]) -> tuple[Mapping[str, Compiled], Mapping[str, str]]:
    """What compiles, by name, and why the rest does not."""
    lowered, failures = {}, {}
    for program in programs:
        try:
            lowered[program.name] = jax.jit(program.function).lower(*program.arguments)
        except Exception as error:
            failures[program.name] = first_line(error)
    compiled = {}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        jobs = {name: pool.submit(stage.compile) for name, stage in lowered.items()}
        for program in programs:
            if program.name not in jobs:
                continue
            try:
                compiled[program.name] = Compiled(jobs[program.name].result(), program.arguments)
            except Exception as error:
                failures[program.name] = first_line(error)
    return compiled, failures


def interleaved_seconds(
    compiled: Mapping[str, Compiled], repeats: int
) -> tuple[Mapping[str, float], Mapping[str, str]]:
    """The median time of one call of each, taken in turn so that all see the same clock; and what failed.

    A turn begins with a call that is not timed: the first after another program also pays for memory that the system
    took back in between, where a run's step follows one like it."""
    calls, failures = {}, {}
    for name, program in compiled.items():
        try:
            program.seconds(1)
            calls[name] = max(1, round(BATCH_SECONDS / program.seconds(1))) if repeats > 1 else 1
        except Exception as error:
            failures[name] = first_line(error)
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, count in calls.items():
            compiled[name].seconds(1)
            times[name].append(compiled[name].seconds(count))
    return {name: statistics.median(values) for name, values in times.items()}, failures


def first_line(error: BaseException) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0] if text else ''}"[:300]
