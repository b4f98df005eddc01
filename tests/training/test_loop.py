"""Runs from beginning to end: continued runs equal uninterrupted ones, bad numbers stop, nothing recompiles."""

import itertools
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.monitoring
import numpy as np
import pytest

from focus_jax import pretraining
from focus_jax.config import Config
from focus_jax.data.batches import Batch, train_batches
from focus_jax.errors import CONTINUE_ME, UserError
from focus_jax.run_folder import RunFolder
from focus_jax.telemetry import Telemetry
from focus_jax.training import loop
from focus_jax.training.bad_updates import Diverged
from focus_jax.training.learner import Learner
from tests.changes import changed
from tests.training.runs import final_states, rows, start, stop_after


@pytest.fixture
def run(run: Config) -> Config:
    """One layer and one hard reading: what is tested here is the loop."""
    return changed(run, model={"layers": 1}, evaluation={"top_k": (1,)})


@pytest.fixture
def alone(run: Config) -> Config:
    """Without Focus, where which model it is means nothing: it compiles in a third of the time."""
    return changed(run, models=("dense",))


@pytest.mark.parametrize(
    ("stop_step", "changes"),
    [
        (2, {"models": ("focus",)}),
        (7, {"attention": {"training": "hard", "hard_from_step": 5, "probes": 6}}),
    ],
)
def test_a_continued_run_equals_an_uninterrupted_one_bit_for_bit(run, text, monkeypatch, stop_step, changes):
    whole, parts = (changed(run, run=f"{run.run}-{name}", **changes) for name in ("whole", "parts"))
    assert start(whole) == 0
    with monkeypatch.context() as patch:
        stop_after(patch, stop_step)
        assert start(parts) == CONTINUE_ME
    stopped_rows = rows(parts)
    assert start(parts) == 0
    assert len(stopped_rows) < len(rows(parts))
    assert rows(parts) == rows(whole)
    assert jax.tree.structure(final_states(parts)) == jax.tree.structure(final_states(whole))
    jax.tree.map(np.testing.assert_array_equal, final_states(parts), final_states(whole))


def test_a_killed_run_goes_on_from_its_last_checkpoint(run, text):
    """Rows and evaluations after that checkpoint are those of the lost steps: they are cut, then made again."""
    assert start(run) == 0
    whole = rows(run)
    folder = RunFolder(Path(run.run))
    shutil.rmtree(folder.checkpoints / "12")
    shutil.rmtree(folder.checkpoints / "8")
    with folder.metrics.open("a") as file:
        file.write('{"kind": "train", "step": 1')
    assert start(run) == 0
    assert rows(run) == whole


def test_seconds_go_on_counting(alone, text, monkeypatch):
    with monkeypatch.context() as patch:
        stop_after(patch, 7)
        start(alone)
    start(alone)
    lines = [json.loads(line) for line in (Path(alone.run) / "metrics.jsonl").read_text().splitlines()]
    seconds = [row["seconds"] for row in lines if row["kind"] == "train"]
    assert seconds == sorted(seconds)
    assert [row["name"] for row in lines if row["kind"] == "event"] == ["started", "resumed"]


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"optimizer": {"peak_lr": 2e-2}}, r"^optimizer\.peak_lr: 0\.02, but the run in .* was started with 0\.01"),
        ({"attention": {"window": 6}}, r"^attention\.window"),
        ({"seed": 3}, r"^seed"),
        ({"models": ("dense",)}, r"^models"),
    ],
)
def test_what_is_computed_may_not_change_on_resume(run, changes, name):
    folder = RunFolder(Path(run.run))
    folder.write_config(run)
    folder.check(changed(run, **changes))
    (folder.checkpoints / "4").mkdir(parents=True)
    with pytest.raises(UserError, match=name):
        folder.check(changed(run, **changes))


def test_what_is_only_watched_may_change_on_resume(run, text, monkeypatch):
    with monkeypatch.context() as patch:
        stop_after(patch, 5)
        assert start(run) == CONTINUE_ME
    other = changed(run, telemetry={"log_every": 1}, evaluation={"top_k": (3,)}, checkpoint={"every": 5})
    RunFolder(Path(run.run)).check(other)
    assert start(other) == 0
    assert RunFolder(Path(run.run)).read_config() == other


def test_another_token_store_is_refused_on_resume(alone, text, monkeypatch):
    with monkeypatch.context() as patch:
        stop_after(patch, 5)
        start(alone)
    shutil.rmtree(alone.data.store)
    (text / "new.txt").write_text("something else entirely " * 50)
    with pytest.raises(UserError, match=r"^data\.store: .* was trained on another token store"):
        start(alone)


def test_the_loop_stops_before_an_update_that_is_not_finite(run, text):
    poisoned = changed(run, optimizer={"peak_lr": 1e30, "clip_norm": 1e30})
    said = r"^step \d: .* of (focus|dense) are not both finite; .*no checkpoint was saved yet"
    with pytest.raises(Diverged, match=said):
        start(poisoned)
    events = [json.loads(line) for line in (Path(run.run) / "metrics.jsonl").read_text().splitlines()]
    assert events[-1]["name"] == "not_finite"
    assert events[-1]["model"] in ("focus", "dense")


def test_nothing_is_compiled_after_the_first_checkpoint(run, text):
    compiled_at: list[int] = []
    step = 0

    def listen(event: str, duration: float, **_: object) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            compiled_at.append(step)

    progress = Telemetry.progress

    def count(self: Telemetry, done: int) -> None:
        nonlocal step
        step = done
        progress(self, done)

    jax.monitoring.register_event_duration_secs_listener(listen)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Telemetry, "progress", count)
        start(run)
    assert compiled_at
    # Evaluation compiles at the first checkpoint, when step 4 is done.
    assert max(compiled_at) <= 4


def test_implicit_transfers_are_refused_in_the_loop(alone, text, monkeypatch):
    dispatch = Learner.dispatch

    def careless(self: Learner, step: int, inputs_BT: jax.Array, targets_BT: jax.Array):
        return dispatch(self, step, inputs_BT + 0, targets_BT)

    monkeypatch.setattr(Learner, "dispatch", careless)
    with pytest.raises(Exception, match="Disallowed host-to-device transfer"):
        start(alone)


def test_checkpoints_are_kept_as_asked(alone, text):
    start(changed(alone, checkpoint={"every": 2, "keep": 2, "keep_every": 6}))
    kept = sorted(int(p.name) for p in RunFolder(Path(alone.run)).checkpoints.iterdir() if p.name.isdigit())
    assert kept == [6, 10, 12]


def test_the_wait_for_data_is_the_mean_of_the_steps_since_the_row_before(alone, text, monkeypatch):
    clock = 0.0
    steps = itertools.count(1)

    def slow(*arguments: object, **options: object) -> Iterator[Batch]:
        nonlocal clock
        for batch in train_batches(*arguments, **options):
            clock += next(steps)
            yield batch

    monkeypatch.setattr(pretraining, "train_batches", slow)

    def tick() -> float:
        nonlocal clock
        clock += 1e-6
        return clock

    monkeypatch.setattr(loop.time, "perf_counter", tick)
    start(alone)
    lines = [json.loads(line) for line in (Path(alone.run) / "metrics.jsonl").read_text().splitlines()]
    waits = [round(row["data_seconds"], 2) for row in lines if row["kind"] == "train"]
    assert waits == [1.5, 3.5, 5.5, 7.5, 9.5, 11.5]
