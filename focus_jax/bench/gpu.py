"""Correctness and speed of the attention kernels on one NVIDIA GPU, in under four minutes.

    python -m focus_jax.bench.gpu --json PATH

First every kernel against the float32 definition, computed on the CPU; then dense and routed attention in turn at each
length, the most telling lengths first, against the faster of cuDNN and our own dense kernel. The file is a list of
rows, rewritten after every one: what fails or no longer fits the time becomes a row that says so. Needs jax and numpy.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp

from focus_jax.accounting.pairs import FORWARD, dense_pairs, kept_pairs
from focus_jax.bench.kernel_checks import check_kernels
from focus_jax.bench.origin import commit, machine
from focus_jax.bench.programs import Program, compile_all, first_line, interleaved_seconds, with_gradient
from focus_jax.bench.report import Report
from focus_jax.bench.routing import balanced_groups
from focus_jax.ops import dense_attention, routed_attention
from focus_jax.ops.layout import rows_to_slots, slots_to_entries
from focus_jax.ops.merged import Statics
from focus_jax.ops.pallas import PASSES

GROUPS, WINDOW = 8, 128
TOP_K = (1, 2)
DIRECTIONS = ("forward", "both")
DTYPE = "bfloat16"
SLOWEST_DENSE = 150e12
"""FLOP/s that a plan may count on, for lengths whose time has to be known beforehand."""
SETUP_SECONDS = 15.0
"""Compilation and arrays of one length."""
BACKWARD_COST = 2.5
"""Matrix products of the backward pass by those of the forward pass."""


@dataclass(frozen=True)
class Setting:
    """One length of the table."""

    tokens: int
    batch: int
    heads: int
    channels: int
    repeats: int

    @property
    def dense_flops(self) -> float:
        """Of the forward pass."""
        return float(FORWARD) * self.batch * self.heads * self.channels * dense_pairs(self.tokens)

    @property
    def seconds(self) -> float:
        """An upper estimate: each program once to warm up, once to measure; routed attention costs less than dense."""
        return SETUP_SECONDS + 2 * 2 * (2 + BACKWARD_COST) * self.dense_flops / SLOWEST_DENSE


def short(tokens: int) -> Setting:
    return Setting(tokens, batch=max(1, 16384 // tokens), heads=16, channels=128, repeats=5)


def long(tokens: int) -> Setting:
    return Setting(tokens, batch=1, heads=2, channels=128, repeats=1)


SETTINGS = (
    *map(short, (4096, 16384, 65536)),
    long(1 << 20),
    *map(short, (1024, 8192, 32768)),
    long(1 << 18),
)


class Deadline:
    def __init__(self, seconds: float) -> None:
        self.end = time.perf_counter() + seconds

    def left(self) -> float:
        return self.end - time.perf_counter()


def measure(setting: Setting, dense_implementations: Sequence[str], report: Report) -> None:
    """Adds a row for every number of groups and direction, and notes about what failed."""
    heads = random_heads(setting)
    groups_BTM = {top_k: balanced_groups(setting.batch, setting.tokens, GROUPS, top_k) for top_k in TOP_K}
    programs = [
        *dense_programs(dense_implementations, heads),
        *(program for top_k in TOP_K for program in routed_programs(top_k, jnp.asarray(groups_BTM[top_k]), heads)),
    ]
    compiled, failures = compile_all(programs)
    seconds, more_failures = interleaved_seconds(compiled, setting.repeats)
    for name, error in {**failures, **more_failures}.items():
        report.add({"kind": "note", "tokens": setting.tokens, "what": name, "error": error})
    for direction in DIRECTIONS:
        dense = {
            name: seconds[f"dense {name} {direction}"]
            for name in dense_implementations
            if f"dense {name} {direction}" in seconds
        }
        for top_k in TOP_K:
            if f"routed {top_k} {direction}" not in seconds or not dense:
                continue
            fastest = min(dense, key=dense.__getitem__)
            routed = seconds[f"routed {top_k} {direction}"]
            groups_TM = groups_BTM[top_k][0]
            kept = kept_pairs(groups_TM, groups_TM[:, 0], WINDOW)
            report.add(
                {
                    "kind": "speed",
                    "tokens": setting.tokens,
                    "top_k": top_k,
                    "groups": GROUPS,
                    "window": WINDOW,
                    "heads": setting.heads,
                    "channels": setting.channels,
                    "batch": setting.batch,
                    "dtype": DTYPE,
                    "device": machine(),
                    "direction": direction,
                    "implementation": "pallas",
                    "dense_implementation": fastest,
                    "dense_seconds": dense[fastest],
                    "focus_seconds": routed,
                    "speedup": dense[fastest] / routed,
                    "bound": dense_pairs(setting.tokens) / kept,
                    "commit": commit(),
                    **{f"dense_{name}_seconds": value for name, value in dense.items()},
                    "sort_gather_seconds": seconds.get(f"sort {top_k}"),
                }
            )


def random_heads(setting: Setting) -> Sequence[jax.Array]:
    """do, q, k and v."""
    shape = (setting.batch, setting.tokens, setting.heads, setting.channels)
    draw = jax.jit(lambda key: jax.random.normal(key, shape, DTYPE))
    return [draw(key) for key in jax.random.split(jax.random.key(0, impl="rbg"), 4)]


def dense_programs(implementations: Sequence[str], heads: Sequence[jax.Array]) -> Sequence[Program]:
    programs = []
    for name in implementations:
        attention = partial(dense_attention, implementation=name)
        programs += [
            Program(f"dense {name} forward", attention, heads[1:]),
            Program(f"dense {name} both", with_gradient(attention), heads),
        ]
    return programs


def routed_programs(top_k: int, groups_BTM: jax.Array, heads: Sequence[jax.Array]) -> Sequence[Program]:
    """Keys belong to the first group of their token, queries read all."""
    attention = partial(routed_attention, num_groups=GROUPS, window=WINDOW, implementation="pallas")
    groups = groups_BTM, groups_BTM[..., :1]
    return [
        Program(f"routed {top_k} forward", attention, (*heads[1:], *groups)),
        Program(f"routed {top_k} both", with_gradient(attention), (*heads, *groups)),
        Program(f"sort {top_k}", sort_and_gather, (*heads[1:], *groups)),
    ]


def sort_and_gather(
    q_BTHC: jax.Array, k_BSJC: jax.Array, v_BSJC: jax.Array, query_groups_BTM: jax.Array, key_groups_BSN: jax.Array
) -> object:
    """What a forward pass does around the distant kernel: the layout, the tokens into its slots, the outputs back."""
    statics = Statics(query_offset=0, scale=1.0, window=WINDOW, num_groups=GROUPS)
    layout = PASSES.layout(q_BTHC, query_groups_BTM, key_groups_BSN, False, statics)
    # The barrier keeps the way there and the way back from being fused into one.
    slots = jax.lax.optimization_barrier(
        (rows_to_slots(q_BTHC, layout.query), rows_to_slots(k_BSJC, layout.key), rows_to_slots(v_BSJC, layout.key))
    )
    return slots, slots_to_entries(slots[0], layout.query)


def run(settings: Sequence[Setting], seconds: float, report: Report) -> bool:
    """The kernel checks, then as many lengths as fit; whether all kernels passed."""
    deadline = Deadline(seconds)
    passed = check_kernels(report)
    for setting in settings:
        if deadline.left() < setting.seconds:
            reason = f"{deadline.left():.0f} s left, {setting.seconds:.0f} s needed at most"
            report.add({"kind": "note", "tokens": setting.tokens, "what": "left out", "error": reason})
            continue
        try:
            measure(setting, ("cudnn", "pallas"), report)
        except Exception as error:
            report.add({"kind": "note", "tokens": setting.tokens, "what": "failed", "error": first_line(error)})
    return passed


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True, help="file of the rows")
    parser.add_argument("--seconds", type=float, default=225.0, help="time after which no further length is begun")
    options = parser.parse_args(arguments)
    if jax.default_backend() != "gpu":
        parser.error(f"needs an NVIDIA GPU, this is {jax.default_backend()}")
    return 0 if run(SETTINGS, options.seconds, Report(options.json)) else 1


if __name__ == "__main__":
    sys.exit(main())
