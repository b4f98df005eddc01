"""Updates that would harm a model: found on the device, stopped or skipped, recorded, and run again."""

import math
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from focus_jax.config import Config
from focus_jax.data.batches import train_batches
from focus_jax.data.store import open_store
from focus_jax.replay import replay
from focus_jax.run_folder import RunFolder
from focus_jax.training import guard
from focus_jax.training.bad_updates import MOST_SKIPPED_IN_A_ROW, Diverged, describe
from focus_jax.training.learner import Learner
from focus_jax.training.optimizer import relative_schedule
from focus_jax.training.step import StepMetrics
from tests.changes import changed
from tests.training.runs import events, rows, start

WINDOW = 4


@pytest.fixture
def run(run: Config) -> Config:
    """Quick to find a spike: the loss of some batch is above the mean of two."""
    return changed(
        run,
        model={"layers": 1},
        evaluation={"top_k": (1,)},
        training={"steps": 16},
        optimizer={"peak_lr": 3e-2},
        telemetry={"log_every": 1},
        guard={"bad_update": "skip", "spike_deviations": 0.2, "spike_window": 2},
    )


def after(losses: list[float]) -> guard.Guard:
    state = guard.initial_guard()
    for loss in losses:
        state = guard.applied(state, jnp.float32(loss), WINDOW)
    return state


def test_mean_and_deviation_are_those_of_the_losses_then_fade():
    losses = np.random.default_rng(0).normal(5, 2, 12)
    filled = after(losses[:WINDOW])
    np.testing.assert_allclose(filled.mean, losses[:WINDOW].mean(), rtol=1e-6)
    np.testing.assert_allclose(filled.variance, losses[:WINDOW].var(), rtol=1e-5)
    weights = np.array(WINDOW * [0.75**8 / WINDOW] + [0.25 * 0.75 ** (7 - n) for n in range(8)])
    mean = weights @ losses
    faded = after(losses)
    np.testing.assert_allclose(faded.mean, mean, rtol=1e-5)
    np.testing.assert_allclose(faded.variance, weights @ (losses - mean) ** 2, rtol=1e-5)
    loss = jnp.float32(mean + 3 * math.sqrt(faded.variance))
    np.testing.assert_allclose(guard.deviations(faded, loss, WINDOW), 3, rtol=1e-4)


def test_nothing_is_a_spike_before_a_window_of_losses_was_seen():
    assert guard.deviations(after([1.0] * (WINDOW - 1)), jnp.float32(100), WINDOW) == 0
    assert guard.deviations(after([1.0] * WINDOW), jnp.float32(100), WINDOW) > 100


def test_what_was_skipped_is_counted_and_no_measure():
    state = guard.skipped(guard.skipped(after([1.0, 2.0])))
    assert (state.skipped, state.skipped_in_a_row) == (2, 2)
    assert (state.mean, state.seen) == (1.5, 2)
    state = guard.applied(state, jnp.float32(1), WINDOW)
    assert (state.skipped, state.skipped_in_a_row) == (2, 0)


def test_skips_are_counted_recorded_and_alone_to_their_model(run, text):
    assert start(run) == 0
    skips = [row for row in events(run) if row["name"] == "loss_spike"]
    assert {row["model"] for row in skips} == {"focus", "dense"}
    for model in run.models:
        counted = [row for row in skips if row["model"] == model]
        assert [row["skipped"] for row in counted] == list(range(1, len(counted) + 1))
        last = [row for row in rows(run) if row["kind"] == "train" and row["model"] == model][-1]
        assert last["skipped"] == len(counted)
    # The learning rate is that of the step, whatever was skipped before it.
    schedule = relative_schedule(run)
    for row in rows(run):
        if row["kind"] == "train":
            assert row["lr"] == pytest.approx(run.optimizer.peak_lr * float(schedule(row["step"] - 1)), rel=1e-5)
    # Where to find the batch.
    store = open_store(run.data, run.model.vocab_size)
    step, sequences = skips[0]["step"], skips[0]["sequences"]
    length = run.training.sequence_length
    batch = next(
        train_batches(
            store,
            sequence_length=length,
            batch_size=run.training.batch_size,
            seed=run.seed,
            first_step=step - 1,
        )
    )
    for row, (folder, window) in zip(batch.inputs_BT, sequences, strict=True):
        assert folder == run.data.store
        np.testing.assert_array_equal(row, store.train.read(window * length, (window + 1) * length))
    # Dense skips and learns as it does without a twin.
    alone = changed(run, run=f"{run.run}-alone", models=("dense",))
    assert start(alone) == 0
    training = [row for row in rows(run) if row["kind"] in ("train", "event") and row.get("model") == "dense"]
    assert training == [row for row in rows(alone) if row["kind"] in ("train", "event")]


def test_a_run_goes_on_as_before_after_a_skip(run, text, capsys):
    assert start(run) == 0
    before = rows(run)
    folder = RunFolder(Path(run.run))
    skip = next(row for row in events(run) if row["name"] == "loss_spike" and row["step"] > 4)
    for step in (12, 16):
        shutil.rmtree(folder.checkpoints / str(step))
    assert start(run) == 0
    assert rows(run) == before

    capsys.readouterr()
    content = {path: path.stat().st_mtime_ns for path in folder.path.rglob("*")}
    replay(run, folder, open_store(run.data, run.model.vocab_size), skip["step"])
    assert content == {path: path.stat().st_mtime_ns for path in folder.path.rglob("*")}
    said = capsys.readouterr().out
    assert f"step {skip['step']} again, from checkpoint {(skip['step'] - 1) // 4 * 4}" in said
    assert f"{skip['model']}: {skip['message'].split(';')[0]}" in said
    # Both models' rows, and the event.
    assert said.count("the same loss and gradient norm as recorded, to the last bit") >= 3
    assert f"window {skip['sequences'][0][1]} of {run.data.store}" in said


def test_stop_ends_the_run_and_says_how_to_go_on(run, text):
    stopping = changed(run, guard={"bad_update": "stop"})
    said = (
        r"^step (\d+): loss .* standard deviations above .*--replay \1, or leave it out with --guard.bad-update skip; "
    )
    with pytest.raises(Diverged, match=said) as error:
        start(stopping)
    assert error.value.exit_code == 1
    with pytest.raises(Diverged, match=said):
        start(stopping)
    RunFolder(Path(run.run)).check(run)


def test_many_skips_in_a_row_end_the_run(run, text, monkeypatch):
    initialise = Learner.initialise

    def poisoned(self: Learner) -> None:
        initialise(self)
        self.state = self.state._replace(params=jax.tree.map(lambda x: x * jnp.nan, self.state.params))

    monkeypatch.setattr(Learner, "initialise", poisoned)
    said = rf"^step {MOST_SKIPPED_IN_A_ROW}: loss nan .* {MOST_SKIPPED_IN_A_ROW} updates in a row were skipped"
    with pytest.raises(Diverged, match=said):
        start(changed(run, checkpoint={"every": 16}))
    assert [row["skipped"] for row in events(run) if row["name"] == "not_finite"][-1] == MOST_SKIPPED_IN_A_ROW


def test_what_is_not_finite_is_named():
    values = dict.fromkeys(StepMetrics._fields, np.float32(1)) | {"finite": np.False_}
    assert describe("focus", StepMetrics(**values)) == "the gradient of the routers of focus is not finite"
    values["grad_norm"] = np.float32("inf")
    assert describe("focus", StepMetrics(**values)) == "loss 1.0 and gradient norm inf of focus are not both finite"


@pytest.mark.slow
def test_starving_and_dominant_groups_are_warned_about(run, text, capsys):
    # Of so many groups some hold no held-out token at all.
    unbalanced = changed(run, attention={"balance": "none", "groups": 48})
    assert start(unbalanced) == 0
    groups = {row["step"]: row["load"] for row in rows(unbalanced) if row["kind"] == "groups"}
    warned = [row for row in events(unbalanced) if row["name"] in ("starved_group", "dominant_group")]
    assert warned
    for row in warned:
        for group, share in row["shares"].items():
            assert groups[row["step"]][int(group)] == share
            assert share < 0.1 / 48 or share > (1 + 1 / 48) / 2
            assert f"group {group} ({share:.2%})" in row["message"]
    assert warned[0]["message"] in capsys.readouterr().out
