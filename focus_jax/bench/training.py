"""Speed of the whole train step: forward, backward and optimizer of Focus and its dense twin, in turn in one process.

    python -m focus_jax.bench.training --tokens 1024,4096,16384 --json PATH

A row for each length and model: median seconds, the speedup over the dense twin and its bound (FLOPs of the twin's step
/ FLOPs of this one's, probe rows included, with the pairs that the router really keeps), and model FLOP/s as a share of
the rate of a large matrix product measured in the same rounds.

Letters: B batch, T tokens.
"""

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from focus_jax.accounting import flops
from focus_jax.accounting.peaks import MATMUL_SIZE
from focus_jax.bench.attention import count, counts
from focus_jax.bench.origin import commit, machine
from focus_jax.bench.programs import Program, compile_all, interleaved_seconds
from focus_jax.bench.report import Report
from focus_jax.config import Checkpoint, Config, Data, Focus, Optimizer, Training, dense_twin, gpt2
from focus_jax.config_loading import check
from focus_jax.errors import UserError, exit_code
from focus_jax.model import as_trained
from focus_jax.step_memory import keep_step_memory
from focus_jax.training.optimizer import make_optimizer
from focus_jax.training.state import TrainState, graph_of, initial_state
from focus_jax.training.step import make_train_step

VOCABULARY = 256
SETTLING_STEPS, SETTLING_TOKENS = 40, 1024
"""The groups of a fresh router are uneven; so many steps of training make them even before anything is timed."""


def bench_config(options: argparse.Namespace, tokens: int) -> Config:
    """A small model whose attention costs more than the rest from a few thousand tokens on. UserError where the
    options make no sense at that length."""
    model = gpt2(vocab_size=VOCABULARY, width=256, layers=4, heads=4)
    run = Config(
        run="bench",
        model=dataclasses.replace(model, positions="rotary"),
        attention=Focus(groups=options.groups, top_k=options.top_k, window=options.window, probes=options.probes),
        data=Data(store="bench"),
        training=Training(steps=10_000, batch_size=1, sequence_length=tokens),
        # Random text teaches nothing: a model that moves on it makes its tokens alike, and its groups with them.
        optimizer=Optimizer(peak_lr=1e-6, warmup_steps=0),
        checkpoint=Checkpoint(every=10_000),
    )
    return check(run, origin=f"at {tokens} tokens: ")


def measure(options: argparse.Namespace, tokens: int, settled_focus: TrainState) -> list[dict[str, Any]]:
    """The rows of both models at one length."""
    focus = bench_config(options, tokens)
    models = {"dense": dense_twin(focus), "focus": focus}
    states = {"dense": initial(models["dense"]), "focus": settled_focus}
    batch = random_batch(tokens)
    programs = [Program(name, train_step(run), (states[name], *batch)) for name, run in models.items()]
    size = MATMUL_SIZE[jax.default_backend()]
    square = jnp.ones((size, size))
    compiled, failures = compile_all([*programs, Program("matmul", jnp.matmul, (square, square))])
    seconds, more_failures = interleaved_seconds(compiled, options.repeats)
    for name, failure in {**failures, **more_failures}.items():
        raise UserError(f"{name} at {tokens} tokens: {failure}")

    steps = {name: compiled[name] for name in models}
    matmul_rate = 2 * size**3 / seconds["matmul"]
    kept = {name: float(program.executable(*program.arguments)[1].kept_fraction) for name, program in steps.items()}
    distant_rows = max(tokens - options.window - 1, 0)
    executed = {name: tokens * flops.executed(run, kept[name]) for name, run in models.items()}
    return [
        {
            "tokens": tokens,
            "model": name,
            "top_k": options.top_k if name == "focus" else None,
            "seconds_per_step": seconds[name],
            "tokens_per_second": tokens / seconds[name],
            "speedup": seconds["dense"] / seconds[name],
            "bound": executed["dense"] / executed[name],
            "fraction_of_matmul_rate": executed[name] / seconds[name] / matmul_rate,
            "kept_fraction": kept[name],
            "probes": min(options.probes, distant_rows) if name == "focus" else None,
            "repeats": options.repeats,
            "device": machine(),
            "commit": commit(),
        }
        for name in models
    ]


def initial(run: Config) -> TrainState:
    return jax.jit(lambda: initial_state(run, make_optimizer(run)))()


def settled(run: Config) -> TrainState:
    """After some steps on random text: potentials and centres are where they make groups even."""
    step = jax.jit(train_step(run))
    state = initial(run)
    for seed in range(SETTLING_STEPS):
        state, _ = step(state, *random_batch(run.training.sequence_length, seed))
    return state


def train_step(run: Config) -> Any:
    return make_train_step(run, graph_of(run), make_optimizer(run), as_trained(run.attention, 0))


def random_batch(tokens: int, seed: int = 0) -> tuple[jax.Array, jax.Array]:
    tokens_BT = jax.random.randint(jax.random.key(seed), (1, tokens + 1), 0, VOCABULARY)
    return tokens_BT[:, :-1], tokens_BT[:, 1:]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=counts, default=[1024, 4096, 16384], help="lengths, separated by commas")
    parser.add_argument("--groups", type=count, default=8)
    parser.add_argument("--top-k", type=count, default=1)
    parser.add_argument("--window", type=count, default=128)
    parser.add_argument("--probes", type=count, default=32)
    parser.add_argument("--repeats", type=count, default=5, help="rounds that the medians are over")
    parser.add_argument("--json", type=Path, required=True, help="file for the rows")
    options = parser.parse_args(arguments)
    settling = bench_config(options, SETTLING_TOKENS)
    for tokens in options.tokens:
        bench_config(options, tokens)
    report = Report(options.json)
    settled_focus = settled(settling)
    for tokens in options.tokens:
        for row in measure(options, tokens, settled_focus):
            report.add(row)
    return 0


if __name__ == "__main__":
    keep_step_memory()
    sys.exit(exit_code(main))
