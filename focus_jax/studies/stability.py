"""Do groups stay in use? Training as published but for Sinkhorn, parts of it held still, and what prevents collapse.

    python -m focus_jax.studies.stability --results PATH [--seeds 3]

The task is that of the recall study, form "kind": distant tokens are needed, a closed gate hinders them, and one group
for all tokens opens every gate. Affinities are a softmax of dot products, the gate is `sigmoid`, and the language
model's gradient reaches everything, or everything but the centroids, the projection or both. Beside it the same with
carried potentials, and the recommended hard training. Runs what the results file lacks and prints the table.
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
import optax

from focus_jax.bench.attention import device
from focus_jax.bench.report import commit
from focus_jax.config import Config
from focus_jax.errors import exit_code
from focus_jax.huge_pages import use_huge_pages
from focus_jax.model import as_trained
from focus_jax.studies.recall import arms as recall
from focus_jax.studies.recall.task import draw
from focus_jax.studies.recall.trial import (
    MEASURED_SEQUENCES,
    STEPS_BETWEEN_MEASUREMENTS,
    initial,
    measure,
    train_on,
)
from focus_jax.studies.results import Results, Row
from focus_jax.training.optimizer import make_optimizer
from focus_jax.training.state import TrainState

GROUPS = 4

_SOFTMAX = "attention.balance=none attention.gate=sigmoid attention.scores=dot attention.score_std=1.0"


@dataclass(frozen=True)
class Arm:
    name: str
    seed: int


IDENTITY = ("name", "seed")


@dataclass(frozen=True)
class Rule:
    recall_arm: str
    changes: str = ""
    still: tuple[str, ...] = ()
    """Names of router parameters that do not train."""


RULES = {
    "softmax": Rule("soft", _SOFTMAX),
    "softmax, centroids still": Rule("soft", _SOFTMAX, ("centroids_KR",)),
    "softmax, projection still": Rule("soft", _SOFTMAX, ("projection_DR",)),
    "softmax, router still": Rule("soft", _SOFTMAX, ("centroids_KR", "projection_DR")),
    "carried, soft": Rule("soft", _SOFTMAX.replace("balance=none", "balance=carried")),
    "recommended": Rule("distill"),
}


def run_arm(arm: Arm) -> Row:
    """Dominance (mean share of a sequence's largest group) along the way."""
    rule = RULES[arm.name]
    run = recall.config_of(recall.Arm("kind", rule.recall_arm, GROUPS, 1, arm.seed, rule.changes))
    optimizer = optimizer_of(run, rule.still)
    state = jax.jit(lambda: _initial(run, optimizer, arm.seed))()
    train = jax.jit(partial(train_on, run, optimizer, as_trained(run.attention, 0)), donate_argnums=0)
    measured_by = jax.jit(partial(measure, run))
    test = draw(jax.random.key(2000 + arm.seed), MEASURED_SEQUENCES)
    curve = [float(measured_by(state, test)["dominance"])]
    for first in range(0, run.training.steps, STEPS_BETWEEN_MEASUREMENTS):
        state = train(state, jax.random.fold_in(jax.random.key(1000 + arm.seed), first))
        curve.append(float(measured_by(state, test)["dominance"]))
    return {
        **dataclasses.asdict(arm),
        "groups": GROUPS,
        "steps": run.training.steps,
        "dominance_curve": [round(share, 3) for share in curve],
    }


def optimizer_of(run: Config, still: Sequence[str]) -> optax.GradientTransformation:
    """The run's, but for parameters of those names, which stay as they are."""

    def named(params: Any) -> Any:
        return jax.tree.map_with_path(lambda path, _: path[-1].key in still, params)

    return optax.chain(make_optimizer(run), optax.masked(optax.set_to_zero(), named))


def _initial(run: Config, optimizer: optax.GradientTransformation, seed: int) -> TrainState:
    state = initial(run, "kind", seed)
    return state._replace(opt_state=optimizer.init(state.params))


def table(rows: Sequence[Row]) -> str:
    """Markdown: dominance at the start and at the end (mean over seeds), and the lowest and highest end."""
    lines = ["| training | seeds | at the start | at the end | lowest, highest |", "|---|---|---|---|---|"]
    for name in dict.fromkeys(row["name"] for row in rows):
        curves = [row["dominance_curve"] for row in rows if row["name"] == name]
        first, last = ([curve[end] for curve in curves] for end in (0, -1))
        lines.append(
            f"| {name} | {len(curves)} | {statistics.mean(first):.0%} | {statistics.mean(last):.0%} "
            f"| {min(last):.0%}, {max(last):.0%} |"
        )
    return "\n".join(lines)


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
    use_huge_pages()
    sys.exit(exit_code(main))
