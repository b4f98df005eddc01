"""Do groups stay in use? Routers put on a trained dense model, by each way into one group and by what prevents it.

    python -m focus_jax.studies.stability --results PATH [--seeds 3]

The task is that of the recall study. A dense model that solves it is given routers, and everything (or only the
centroids, the projection or the rest of the model) goes on training as published, but for Sinkhorn: a soft gate
`sigmoid`, affinities by softmax. Distant tokens are needed, closed gates hinder them, and one group for all tokens opens
every gate. Beside it the same with carried potentials, and the recommended hard training. Runs what the results file
lacks and prints the table.
"""

import argparse
import dataclasses
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax

from focus_jax import routing
from focus_jax.bench.attention import device
from focus_jax.bench.report import commit
from focus_jax.config import Config
from focus_jax.errors import exit_code
from focus_jax.model import as_trained
from focus_jax.studies.recall import arms as recall
from focus_jax.studies.recall.task import draw
from focus_jax.studies.recall.trial import initial
from focus_jax.studies.results import Results, Row
from focus_jax.training.optimizer import make_optimizer
from focus_jax.training.state import TrainState, graph_of, initial_state, merge
from focus_jax.training.step import make_train_step

LAYERS, GROUPS = 2, 8
STEPS_BETWEEN, MEASUREMENTS = 50, 20
MEASURED_SEQUENCES = 256

_SOFTMAX = "attention.balance=none attention.gate=sigmoid attention.scores=dot attention.score_std=1.0 attention.balance_rate=0.05"


@dataclass(frozen=True)
class Arm:
    name: str
    seed: int


IDENTITY = ("name", "seed")


@dataclass(frozen=True)
class Rule:
    recall_arm: str
    changes: str = ""
    trains: str = ""
    """Part of the names of the parameters that train; empty is all of them, "-router" all but routers."""


RULES = {
    "softmax": Rule("soft", _SOFTMAX),
    "softmax, centroids alone": Rule("soft", _SOFTMAX, "centroids_KR"),
    "softmax, projection alone": Rule("soft", _SOFTMAX, "projection_DR"),
    "softmax, backbone alone": Rule("soft", _SOFTMAX, "-router"),
    "carried, soft": Rule("soft", _SOFTMAX.replace("balance=none", "balance=carried")),
    "recommended": Rule("distill"),
}


def run_arm(arm: Arm) -> Row:
    """Dominance (mean share of a sequence's largest group) of every layer along the way."""
    rule = RULES[arm.name]
    run = _config(rule.recall_arm, rule.changes, arm.seed)
    state = jax.jit(lambda: initial_state(run, make_optimizer(run)))()
    state = state._replace(params=_joined(state.params, _dense_parameters(arm.seed)))
    curve = []
    train = jax.jit(partial(_train, run, _only(rule.trains)), donate_argnums=0)
    measure = jax.jit(partial(_dominance, run))
    test_BT = draw(jax.random.key(2000 + arm.seed), MEASURED_SEQUENCES).inputs_BT
    for part in range(MEASUREMENTS):
        curve.append([round(float(share), 3) for share in measure(state, test_BT)])
        state = train(state, jax.random.fold_in(jax.random.key(3000 + arm.seed), part))
    curve.append([round(float(share), 3) for share in measure(state, test_BT)])
    return {
        **dataclasses.asdict(arm),
        "groups": GROUPS,
        "steps": STEPS_BETWEEN * MEASUREMENTS,
        "dominance_curve": curve,
        "highest": max(max(shares) for shares in curve),
        "dominance": curve[-1],
    }


def table(rows: Sequence[Row]) -> str:
    """Markdown: dominance by layer at the end (mean over seeds), and the highest of any layer at any time."""
    lines = ["| training | seeds | at the start | at the end, by layer | highest |", "|---|---|---|---|---|"]
    for name in dict.fromkeys(row["name"] for row in rows):
        same = [row for row in rows if row["name"] == name]
        first, last = (
            " ".join(
                f"{sum(row['dominance_curve'][end][layer] for row in same) / len(same):.0%}" for layer in range(LAYERS)
            )
            for end in (0, -1)
        )
        lines.append(f"| {name} | {len(same)} | {first} | {last} | {max(row['highest'] for row in same):.0%} |")
    return "\n".join(lines)


def _config(recall_arm: str, changes: str, seed: int) -> Config:
    groups, top_k = (1, 0) if recall_arm == "dense" else (GROUPS, 1)
    run = recall.config_of(recall.Arm("apart", recall_arm, groups, top_k, seed, changes))
    return dataclasses.replace(
        run,
        model=dataclasses.replace(run.model, layers=LAYERS),
        training=dataclasses.replace(run.training, steps=STEPS_BETWEEN * MEASUREMENTS),
    )


def _dense_parameters(seed: int) -> Any:
    """Of a dense model after as many steps as follow."""
    run = _config("dense", "", seed)
    state = jax.jit(lambda: initial(run, "apart", seed))()
    train = jax.jit(partial(_train, run, optax.identity()), donate_argnums=0)
    for part in range(MEASUREMENTS):
        state = train(state, jax.random.fold_in(jax.random.key(1000 + seed), part))
    return state.params


def _train(run: Config, last: optax.GradientTransformation, state: TrainState, key: jax.Array) -> TrainState:
    """`last` sees the updates after the optimizer."""
    optimizer = make_optimizer(run)

    def update(gradients: Any, opt_state: Any, params: Any) -> tuple[Any, Any]:
        updates, opt_state = optimizer.update(gradients, opt_state, params)
        return last.update(updates, last.init(params))[0], opt_state

    masked = optax.GradientTransformation(optimizer.init, update)
    train_step = make_train_step(run, graph_of(run), masked, as_trained(run.attention, 0))

    def step(state: TrainState, key: jax.Array) -> tuple[TrainState, None]:
        return train_step(state, *draw(key, run.training.batch_size))[0], None

    return jax.lax.scan(step, state, jax.random.split(key, STEPS_BETWEEN))[0]


def _only(trains: str) -> optax.GradientTransformation:
    def frozen(params: Any) -> Any:
        return jax.tree.map_with_path(lambda path, _: not _trains(trains, jax.tree_util.keystr(path)), params)

    return optax.masked(optax.set_to_zero(), frozen)


def _trains(trains: str, name: str) -> bool:
    return trains[1:] not in name if trains.startswith("-") else trains in name


def _joined(of_focus: Any, of_dense: Any) -> Any:
    """Values of the dense model where it has them, and routers as they were drawn."""
    if not isinstance(of_focus, dict):
        return of_dense
    return {name: _joined(value, of_dense[name]) if name in of_dense else value for name, value in of_focus.items()}


def _dominance(run: Config, state: TrainState, inputs_BT: jax.Array) -> jax.Array:
    reading = as_trained(run.attention, run.training.steps)
    _, layers = merge(graph_of(run), state.params, state.carried)(inputs_BT, reading)
    return jnp.stack([jnp.mean(routing.group_statistics(layer.log_affinity_BTK).dominance_B) for layer in layers])


def main(arguments: Sequence[str] | None = None, run: Callable[[Arm], Row] = run_arm) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, required=True, help="file of rows, appended to")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--names", nargs="+", choices=RULES, default=list(RULES))
    options = parser.parse_args(arguments)
    results = Results(options.results, IDENTITY)
    made_by = {"commit": commit(), "machine": device()}
    for seed in range(options.seeds):
        for arm in (Arm(name, seed) for name in options.names):
            if not results.has(dataclasses.asdict(arm)):
                results.append(run(arm) | made_by)
    print(table(results.rows))
    return 0


if __name__ == "__main__":
    sys.exit(exit_code(main))
