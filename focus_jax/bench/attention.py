"""Speed of dense and of routed (hard Focus) attention, in turn in one process, beside what their pairs would allow.

    python -m focus_jax.bench.attention --tokens 4096,16384 --groups 8 --top-k 1,2 --window 128 --json PATH

One row for every length and top_k: median seconds of both, the speedup, and its bound (dense pairs / kept pairs);
where the time of routed attention goes; FLOP/s over the pairs that are kept, beside the rate of a large matrix product
measured in the same rounds. Keys belong to one group each ("query" membership). Needs jax and numpy only.
"""

import argparse
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from focus_jax.accounting.pairs import EXECUTED, FORWARD, dense_pairs, kept_pairs
from focus_jax.accounting.peaks import MATMUL_SIZE
from focus_jax.bench.origin import commit, machine
from focus_jax.bench.programs import Program, compile_all, interleaved_seconds, with_gradient
from focus_jax.bench.report import Report
from focus_jax.bench.routing import balanced_groups, with_further_groups
from focus_jax.ops import blockwise, dense_attention, merged, pallas, resolve, routed_attention
from focus_jax.ops.layout import Layout, rows_to_slots, slots_to_tokens

PASSES = {"blockwise": blockwise.PASSES, "pallas": pallas.PASSES}
LONGEST_UNFUSED = 4096
"""jax.nn.dot_product_attention holds T×T on a CPU."""
FLOPS_PER_PAIR_AND_CHANNEL = {"forward": FORWARD, "both": EXECUTED}


@dataclass(frozen=True)
class Case:
    """One row."""

    tokens: int
    top_k: int
    groups: int
    window: int
    heads: int
    kv_heads: int
    channels: int
    batch: int
    dtype: str
    direction: str
    routing: str
    seed: int
    implementation: str
    dense_implementation: str


@dataclass(frozen=True)
class Inputs:
    q_BTHC: jax.Array
    k_BSJC: jax.Array
    v_BSJC: jax.Array
    do_BTHC: jax.Array
    query_groups_BTM: jax.Array
    key_groups_BSN: jax.Array

    @classmethod
    def of(cls, case: Case) -> "Inputs":
        rng = np.random.default_rng(case.seed)
        B, T = case.batch, case.tokens

        def normal(heads: int) -> jax.Array:
            return jnp.asarray(rng.standard_normal((B, T, heads, case.channels), np.float32), case.dtype)

        groups_BTM = routed_groups(case)
        qkv = normal(case.heads), normal(case.kv_heads), normal(case.kv_heads)
        return cls(*qkv, normal(case.heads), jnp.asarray(groups_BTM), jnp.asarray(groups_BTM[..., :1]))

    @property
    def qkv(self) -> tuple[jax.Array, jax.Array, jax.Array]:
        return self.q_BTHC, self.k_BSJC, self.v_BSJC


def routed_groups(case: Case) -> np.ndarray:
    """groups_BTM: random and balanced, or half of the tokens in one group."""
    if case.routing == "balanced":
        return balanced_groups(case.batch, case.tokens, case.groups, case.top_k, case.seed)
    rng = np.random.default_rng(case.seed)
    shape_BT = (case.batch, case.tokens)
    first_BT = np.where(rng.random(shape_BT) < 0.5, 0, rng.integers(min(1, case.groups - 1), case.groups, shape_BT))
    return with_further_groups(first_BT, case.groups, case.top_k, rng)


def measure(case: Case, repeats: int) -> dict[str, Any]:
    """The row of a case: medians over rounds in which every program runs in turn."""
    inputs = Inputs.of(case)
    programs = [*attention_programs(case, inputs), matmul_program(case), *part_programs(case, inputs)]
    compiled, failures = compile_all(programs)
    seconds, more_failures = interleaved_seconds(compiled, repeats)
    for name, failure in {**failures, **more_failures}.items():
        raise ValueError(f"{name} at {case.tokens} tokens: {failure}")

    kept = mean_kept_pairs(case)
    flops_per_pair = FLOPS_PER_PAIR_AND_CHANNEL[case.direction] * case.channels * case.heads * case.batch
    matmul_rate = 2 * MATMUL_SIZE[jax.default_backend()] ** 3 / seconds["matmul"]
    dense_rate = flops_per_pair * dense_pairs(case.tokens) / seconds["dense"]
    focus_rate = flops_per_pair * kept / seconds["focus"]
    return {
        **vars(case),
        "device": machine(),
        "dense_seconds": seconds["dense"],
        "focus_seconds": seconds["focus"],
        "speedup": seconds["dense"] / seconds["focus"],
        "bound": dense_pairs(case.tokens) / kept,
        "kept_fraction": kept / dense_pairs(case.tokens),
        **shares(seconds),
        "dense_flops_per_second": dense_rate,
        "focus_flops_per_second": focus_rate,
        "matmul_flops_per_second": matmul_rate,
        "dense_of_matmul": dense_rate / matmul_rate,
        "focus_of_matmul": focus_rate / matmul_rate,
        "jax_nn_seconds": seconds.get("jax_nn"),
        "repeats": repeats,
        "commit": commit(),
    }


def attention_programs(case: Case, inputs: Inputs) -> list[Program]:
    """Dense and routed attention, and on a CPU at short lengths JAX's own dense attention."""
    routed = partial(routed_attention, num_groups=case.groups, window=case.window, implementation=case.implementation)
    dense = partial(dense_attention, implementation=case.dense_implementation)
    groups = inputs.query_groups_BTM, inputs.key_groups_BSN
    programs = [program("dense", case, inputs, dense), program("focus", case, inputs, routed, *groups)]
    if jax.default_backend() == "cpu" and case.tokens <= LONGEST_UNFUSED:
        programs.append(program("jax_nn", case, inputs, partial(jax.nn.dot_product_attention, is_causal=True)))
    return programs


def program(name: str, case: Case, inputs: Inputs, attention: Callable[..., jax.Array], *groups: jax.Array) -> Program:
    """Forward, or forward and the gradients of q, k and v."""
    if case.direction == "forward":
        return Program(name, attention, (*inputs.qkv, *groups))
    return Program(name, with_gradient(attention), (inputs.do_BTHC, *inputs.qkv, *groups))


def matmul_program(case: Case) -> Program:
    size = MATMUL_SIZE[jax.default_backend()]
    a = jax.random.normal(jax.random.key(0), (size, size), case.dtype)
    return Program("matmul", jnp.matmul, (a, a))


def part_programs(case: Case, inputs: Inputs) -> list[Program]:
    """The parts of routed attention, each alone: "move" is the gathering and scattering that "distant" includes;
    "merge" gathers what it merges."""
    passes = PASSES[case.implementation]
    statics = merged.Statics(0, case.channels**-0.5, case.window, case.groups)
    both = case.direction == "both"

    def sort(q_BTHC: jax.Array, *groups: jax.Array) -> Layout:
        return passes.layout(q_BTHC, *groups, both, statics)

    def local(qkv: tuple, output: tuple) -> Any:
        o = passes.local(*qkv, statics)
        return (o, passes.local_backward(*qkv, *output, statics)) if both else o

    def distant(qkv: tuple, output: tuple, layout: Layout) -> Any:
        o = passes.distant(*qkv, layout, None, statics)
        return (o, passes.distant_backward(*qkv, *output, layout, None, statics)) if both else o

    def move(qkv: tuple, output: tuple, layout: Layout) -> Any:
        q_BPHC, k_BPJC, v_BPJC = map(rows_to_slots, qkv, (layout.query, layout.key, layout.key))
        if not both:
            return q_BPHC, k_BPJC, v_BPJC
        rows = [rows_to_slots(rows_BT_, layout.query) for rows_BT_ in output]
        sides = layout.query, layout.key, layout.key
        return q_BPHC, k_BPJC, v_BPJC, rows, list(map(slots_to_tokens, (q_BPHC, k_BPJC, v_BPJC), sides))

    routing = inputs.q_BTHC, inputs.query_groups_BTM, inputs.key_groups_BSN
    layout = jax.jit(sort)(*routing)
    lse_BTH = jnp.zeros(inputs.q_BTHC.shape[:3])
    output = inputs.do_BTHC, lse_BTH, lse_BTH
    far_BPHC = jnp.zeros((*layout.query.entry_BP.shape, *inputs.q_BTHC.shape[2:]))
    return [
        Program("sort", sort, routing),
        Program("move", move, (inputs.qkv, output, layout)),
        Program("local", local, (inputs.qkv, output)),
        Program("distant", distant, (inputs.qkv, output, layout)),
        Program("merge", merged.merge, (inputs.q_BTHC, lse_BTH, far_BPHC, far_BPHC[..., 0], layout.query)),
    ]


def shares(seconds: Mapping[str, float]) -> dict[str, float]:
    """Of the time of routed attention."""
    parts = {
        "sort_share": seconds["sort"] + seconds["move"],
        "local_share": seconds["local"],
        "distant_share": max(0.0, seconds["distant"] - seconds["move"]),
        "merge_share": seconds["merge"],
    }
    return {name: part / sum(parts.values()) for name, part in parts.items()}


def mean_kept_pairs(case: Case) -> float:
    """Of one sequence."""
    groups_BTM = routed_groups(case)
    kept = [kept_pairs(groups_TM, groups_TM[:, 0], case.window) for groups_TM in groups_BTM]
    return statistics.mean(kept)


def cases(options: argparse.Namespace) -> list[Case]:
    implementation = resolve("routed", options.implementation)
    dense_implementation = resolve("dense", options.dense_implementation or implementation)
    if implementation not in PASSES:
        raise ValueError(f"implementation: {implementation} has no passes to time; take one of {', '.join(PASSES)}")
    return [
        Case(
            tokens=tokens,
            top_k=top_k,
            groups=options.groups,
            window=options.window,
            heads=options.heads,
            kv_heads=options.kv_heads or options.heads,
            channels=options.channels,
            batch=options.batch,
            dtype=options.dtype,
            direction=options.direction,
            routing=options.routing,
            seed=options.seed,
            implementation=implementation,
            dense_implementation=dense_implementation,
        )
        for tokens in options.tokens
        for top_k in options.top_k
    ]


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=counts, default=[4096, 16384], help="lengths, separated by commas")
    parser.add_argument("--top-k", type=counts, default=[1], help="numbers of groups a query reads, likewise")
    parser.add_argument("--heads", type=count, default=4)
    parser.add_argument("--kv-heads", type=count, help="default: as many as heads")
    parser.add_argument("--channels", type=count, default=64)
    parser.add_argument("--batch", type=count, default=1)
    parser.add_argument("--groups", type=count, default=8)
    parser.add_argument("--window", type=int, default=128)
    parser.add_argument("--direction", choices=("forward", "both"), default="forward")
    parser.add_argument("--routing", choices=("balanced", "skewed"), default="balanced")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--implementation", default="auto")
    parser.add_argument("--dense-implementation", help="default: as --implementation")
    parser.add_argument("--repeats", type=count, default=5, help="rounds that the medians are over")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, required=True, help="file for the rows")
    return parser.parse_args(arguments)


def counts(text: str) -> list[int]:
    return [count(part) for part in text.split(",")]


def count(text: str) -> int:
    if (value := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"needs at least 1, is {value}")
    return value


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    try:
        planned = cases(options)
        report = Report(options.json)
        for case in planned:
            report.add(measure(case, options.repeats))
    except (ValueError, NotImplementedError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
