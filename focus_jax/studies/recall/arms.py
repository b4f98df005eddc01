"""What is compared: how the one attention layer of the model reads distant tokens and how its router learns."""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from focus_jax.config import Checkpoint, Config, Data, Dense, Focus, Optimizer, Training, llama
from focus_jax.config_loading import check
from focus_jax.errors import UserError
from focus_jax.studies.recall.task import TOKENS, VOCABULARY, WINDOW, Form
from focus_jax.studies.variants import changed

STEPS, BATCH = 2000, 16
STEPS_BETWEEN_MEASUREMENTS = 50
PROBES = 13
"""A quarter of the rows."""

WITHOUT_ROUTER = ("dense", "local")
WITH_ROUTER = ("frozen", "soft", "gate", "anneal", "distill")


@dataclass(frozen=True)
class Arm:
    """One run, but for what `changes` overrides in its config."""

    form: Form
    name: str
    groups: int
    top_k: int
    seed: int
    changes: str = ""
    """SECTION.FIELD=VALUE, separated by spaces: a variant of the rule."""


IDENTITY = tuple(field.name for field in dataclasses.fields(Arm))


def arms(
    forms: Iterable[Form], names: Iterable[str], groups: Iterable[int], top_ks: Iterable[int], seeds: int, changes: str
) -> Iterator[Arm]:
    """Seed by seed, so that an interrupted study has all arms at some seeds. K and M mean nothing without a router."""
    for seed, form, name in itertools.product(range(seeds), forms, names):
        if name in WITHOUT_ROUTER:
            yield Arm(form, name, 1, 0, seed, changes)
            continue
        for number, top_k in itertools.product(groups, top_ks):
            yield Arm(form, name, number, top_k, seed, changes)


def config_of(arm: Arm) -> Config:
    """Raises UserError where `changes` make no sense."""
    run = Config(
        run="recall",
        seed=arm.seed,
        models=("dense",) if arm.name == "dense" else ("focus",),
        model=llama(vocab_size=VOCABULARY, width=64, layers=1, heads=4, kv_heads=4, mlp_width=128),
        attention=_attention(arm),
        data=Data(store="recall"),
        training=Training(steps=STEPS, batch_size=BATCH, sequence_length=TOKENS),
        optimizer=Optimizer(
            peak_lr=3e-3,
            warmup_steps=50,
            weight_decay=0.0,
            router_lr_multiplier=0.0 if arm.name == "frozen" else 1.0,
        ),
        checkpoint=Checkpoint(every=STEPS),
    )
    # Short sequences: the definition is faster than anything in blocks.
    run = dataclasses.replace(run, model=dataclasses.replace(run.model, attention_implementation="reference"))
    run = check(changed(run, arm.changes))
    for name, problem in _beyond_the_study(run):
        raise UserError(f"--changes {name}: {problem}")
    return run


def _beyond_the_study(run: Config) -> Iterator[tuple[str, str]]:
    """What a config can say and this study does not do."""
    if run.training.sequence_length != TOKENS:
        yield "training.sequence_length", f"a sequence of this task has {TOKENS} tokens; leave it out"
    steps = {"training.steps": run.training.steps}
    if isinstance(run.attention, Focus):
        steps["attention.hard_from_step"] = run.attention.hard_from_step
        if run.attention.dense_layers:
            yield "attention.dense_layers", "the first layer is the one that is studied; leave it out"
    for name, number in steps.items():
        if number % STEPS_BETWEEN_MEASUREMENTS:
            yield name, f"{number} is no multiple of the {STEPS_BETWEEN_MEASUREMENTS} steps between two measurements"


def _attention(arm: Arm) -> Dense | Focus:
    if arm.name == "dense":
        return Dense()
    focus = Focus(groups=arm.groups, top_k=arm.top_k, window=WINDOW, probes=PROBES)
    rules: dict[str, dict[str, Any]] = {
        # What softly trained routers do best with (EXPERIMENTS.md).
        "soft": {"training": "soft", "balance_rate": 0.5},
        "gate": {"router": "gate"},
        "anneal": {"router": "gate", "hard_from_step": STEPS // 2},
    }
    return dataclasses.replace(focus, **rules.get(arm.name, {}))
