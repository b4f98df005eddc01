"""Do groups stay in use? Training as published but for Sinkhorn, parts of the router held still, and what prevents
collapse.

    python -m focus_jax.studies.stability --store FOLDER --results PATH [--seeds 3]

Four layers on the standard library's sources. Affinities are a softmax of dot products, the gate is `sigmoid`, and the
language model's gradient reaches everything; or of the router the centroids alone, the projection alone, or nothing, so
that only hidden states move. Beside it the same with carried potentials, and the recommended hard training. Runs what
the results file lacks and prints the table; the token store is made where there is none.

Letters: B batch, L layers, T tokens.
"""

import argparse
import dataclasses
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from focus_jax import routing
from focus_jax.bench.attention import count
from focus_jax.config import Checkpoint, Config, Data, Focus, Optimizer, Training, llama
from focus_jax.config_loading import check
from focus_jax.data.batches import evaluation_batches, train_batches
from focus_jax.data.store import TokenStore, open_store
from focus_jax.errors import exit_code
from focus_jax.model import Reading, as_trained
from focus_jax.step_memory import keep_step_memory
from focus_jax.studies.results import Results, Row
from focus_jax.training.optimizer import make_optimizer
from focus_jax.training.state import TrainState, graph_of, initial_state, merge
from focus_jax.training.step import make_train_step

STEPS, STEPS_BETWEEN_MEASUREMENTS = 600, 20
MEASURED_SEQUENCES = 16

RECOMMENDED = Focus(groups=4, top_k=2, window=16)
SOFTMAX = dataclasses.replace(
    RECOMMENDED, training="soft", gate="sigmoid", scores="dot", score_std=1.0, balance="none", balance_rate=0.5
)


@dataclass(frozen=True)
class Arm:
    name: str
    seed: int


IDENTITY = ("name", "seed")
MEASURED = ("dominance_curve",)


@dataclass(frozen=True)
class Rule:
    attention: Focus
    still: tuple[str, ...] = ()
    """Names of router parameters that do not train."""


RULES = {
    "softmax": Rule(SOFTMAX),
    "softmax, of the router the centroids alone": Rule(SOFTMAX, still=("projection_DR",)),
    "softmax, of the router the projection alone": Rule(SOFTMAX, still=("centroids_KR",)),
    "softmax, hidden states alone": Rule(SOFTMAX, still=("centroids_KR", "projection_DR")),
    "carried, soft": Rule(dataclasses.replace(SOFTMAX, balance="carried")),
    "recommended": Rule(RECOMMENDED),
}


def config_of(arm: Arm, store: Path) -> Config:
    return check(
        Config(
            run="stability",
            seed=arm.seed,
            models=("focus",),
            model=llama(vocab_size=1024, width=128, layers=4, heads=4, kv_heads=4, mlp_width=344),
            attention=RULES[arm.name].attention,
            data=Data(source="stdlib", tokenizer="trained", store=str(store)),
            training=Training(steps=STEPS, batch_size=2, sequence_length=256),
            optimizer=Optimizer(peak_lr=3e-3, warmup_steps=20),
            checkpoint=Checkpoint(every=STEPS),
        )
    )


def run_arm(arm: Arm, folder: Path) -> Row:
    """Dominance (mean share of a sequence's largest group) of every layer on held-out text, along the way."""
    run = config_of(arm, folder)
    store = open_store(run.data, run.model.vocab_size)
    optimizer = optimizer_of(run, RULES[arm.name].still)
    reading = as_trained(run.attention, 0)
    train_step = jax.jit(make_train_step(run, graph_of(run), optimizer, reading), donate_argnums=0)
    dominance_of = jax.jit(partial(dominance, run, reading))
    state = jax.jit(lambda: initial_state(run, optimizer))()
    held_out_BT = held_out(run, store)
    curve_L = [dominance_of(state, held_out_BT)]
    batches = train_batches(
        store,
        sequence_length=run.training.sequence_length,
        batch_size=run.training.batch_size,
        seed=arm.seed,
        first_step=0,
    )
    for done, batch in zip(range(1, STEPS + 1), batches, strict=False):
        state, _ = train_step(state, *batch)
        if done % STEPS_BETWEEN_MEASUREMENTS == 0:
            curve_L.append(dominance_of(state, held_out_BT))
    return {
        **dataclasses.asdict(arm),
        "groups": RULES[arm.name].attention.groups,
        "steps": STEPS,
        "dominance_curve": np.round(jax.device_get(curve_L), 3).tolist(),
    }


def optimizer_of(run: Config, still: Sequence[str]) -> optax.GradientTransformation:
    """The run's, but for parameters of those names, which stay as they are."""

    def named(params: Any) -> Any:
        return jax.tree.map_with_path(lambda path, _: path[-1].key in still, params)

    return optax.chain(make_optimizer(run), optax.masked(optax.set_to_zero(), named))


def held_out(run: Config, store: TokenStore) -> np.ndarray:
    """Inputs (B, T) that every arm of a seed is measured on."""
    (batch,) = evaluation_batches(
        store,
        sequence_length=run.training.sequence_length,
        sequences=MEASURED_SEQUENCES,
        batch_size=MEASURED_SEQUENCES,
        seed=run.seed,
    )
    return batch.inputs_BT


def dominance(run: Config, reading: Reading | None, state: TrainState, inputs_BT: jax.Array) -> jax.Array:
    """Of every layer (L,), read as it is trained."""
    _, layers = merge(graph_of(run), state.params, state.carried).features(inputs_BT, reading)
    return jnp.stack([jnp.mean(routing.group_statistics(routed.log_affinity_BTK).dominance_B) for routed in layers])


def table(rows: Sequence[Row]) -> str:
    """Markdown: the largest dominance of any layer along the way, and every layer's at the end; means over seeds, and
    the lowest and highest seed."""
    lines = ["| training | seeds | start, by layer | highest on the way | end, by layer |", "|---|---|---|---|---|"]
    for name in dict.fromkeys(row["name"] for row in rows):
        curves = [row["dominance_curve"] for row in rows if row["name"] == name]
        highest = [max(map(max, curve)) for curve in curves]
        start, end = (
            " ".join(f"{statistics.mean(of_layer):.0%}" for of_layer in zip(*(c[at] for c in curves), strict=True))
            for at in (0, -1)
        )
        lines.append(
            f"| {name} | {len(curves)} | {start} | {statistics.mean(highest):.0%} "
            f"({min(highest):.0%}–{max(highest):.0%}) | {end} |"
        )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None, run: Callable[[Arm, Path], Row] = run_arm) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", type=Path, required=True, help="folder of the token store")
    parser.add_argument("--results", type=Path, required=True, help="file of rows, appended to")
    parser.add_argument("--seeds", type=count, default=3)
    parser.add_argument("--names", nargs="+", choices=RULES, default=list(RULES))
    options = parser.parse_args(arguments)
    results = Results(options.results, IDENTITY, MEASURED)
    for arm in results.missing(Arm(name, seed) for seed in range(options.seeds) for name in options.names):
        results.append(run(arm, options.store))
    print(table(results.rows))
    return 0


if __name__ == "__main__":
    keep_step_memory()
    sys.exit(exit_code(main))
