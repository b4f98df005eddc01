"""Trains one arm with the project's own model and train step, and measures what it recalls.

Letters: B batch, T tokens.
"""

import dataclasses
import time
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from focus_jax import routing
from focus_jax.accounting.pairs import dense_pairs
from focus_jax.config import Config, Focus
from focus_jax.model import Reading, as_trained
from focus_jax.studies.recall.arms import STEPS_BETWEEN_MEASUREMENTS, Arm, config_of
from focus_jax.studies.recall.task import TOKENS, VALUES, Batch, Form, draw, initial_embeddings
from focus_jax.studies.results import Row
from focus_jax.training.loss import NO_TARGET
from focus_jax.training.optimizer import make_optimizer
from focus_jax.training.state import TrainState, graph_of, initial_state, merge
from focus_jax.training.step import make_train_step

MEASURED_SEQUENCES = 256


def run_arm(arm: Arm) -> Row:
    """One row: accuracy read hard (as it would run) along the way and at the end, kept pairs, the largest group."""
    run = config_of(arm)
    started = time.perf_counter()
    state = jax.jit(lambda: initial(run, arm.form, arm.seed))()
    data_key, test_key = jax.random.split(jax.random.key(1000 + arm.seed))
    test = draw(test_key, MEASURED_SEQUENCES)
    measure = jax.jit(partial(_measure, run))
    train = {}
    curve = []
    for first in range(0, run.training.steps, STEPS_BETWEEN_MEASUREMENTS):
        reading = as_trained(run.attention, first)
        if reading not in train:
            train[reading] = jax.jit(partial(_train, run, reading), donate_argnums=0)
        state = train[reading](state, jax.random.fold_in(data_key, first))
        measured = jax.device_get(measure(state, test))
        curve.append(round(float(measured["accuracy"]), 4))
    return {
        **dataclasses.asdict(arm),
        **{name: round(float(value), 4) for name, value in measured.items()},
        "accuracy_curve": curve,
        "tokens_between": STEPS_BETWEEN_MEASUREMENTS * run.training.batch_size * TOKENS,
        "seconds": round(time.perf_counter() - started, 1),
    }


def initial(run: Config, form: Form, seed: int) -> TrainState:
    """With the task's own embeddings."""
    state = initial_state(run, make_optimizer(run))
    rows, width = state.params["embedding"]["embedding"].shape
    key = jax.random.fold_in(jax.random.key(seed), 77)
    features_VD = initial_embeddings(key, form, rows=rows, width=width, std=run.model.init_std)
    return state._replace(params={**state.params, "embedding": {"embedding": features_VD}})


def _train(run: Config, reading: Reading | None, state: TrainState, key: jax.Array) -> TrainState:
    train_step = make_train_step(run, graph_of(run), make_optimizer(run), reading)

    def step(state: TrainState, key: jax.Array) -> tuple[TrainState, None]:
        return train_step(state, *draw(key, run.training.batch_size))[0], None

    return jax.lax.scan(step, state, jax.random.split(key, STEPS_BETWEEN_MEASUREMENTS))[0]


def _measure(run: Config, state: TrainState, test: Batch) -> dict[str, Any]:
    attention = run.attention
    reading = as_trained(attention, run.training.steps)
    if isinstance(attention, Focus) and attention.training == "soft":
        reading = Reading("hard", attention.top_k, gated=True)
    logits_BTV, layers = merge(graph_of(run), state.params, state.carried)(test.inputs_BT, reading)
    asked_BT = test.targets_BT != NO_TARGET
    right_BT = (jnp.argmax(logits_BTV[..., :VALUES], axis=-1) == test.targets_BT) & asked_BT
    measured = {name: jnp.ones(()) for name in ("accuracy", "kept_fraction", "dominance")}
    measured["accuracy"] = jnp.sum(right_BT) / jnp.sum(asked_BT)
    if isinstance(attention, Focus) and reading is not None:
        log_affinity_BTK = layers[0].log_affinity_BTK
        membership = routing.memberships(log_affinity_BTK, top_k=reading.top_k, kind=attention.membership)
        kept_B = routing.kept_pairs(membership, num_groups=attention.groups, window=attention.window)
        measured["kept_fraction"] = jnp.mean(kept_B) / dense_pairs(TOKENS)
        measured["dominance"] = jnp.mean(routing.group_statistics(log_affinity_BTK).dominance_B)
    return measured
