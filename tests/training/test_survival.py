"""Runs that are killed, lose files or run out of disk: nothing is lost that was complete, and what happened is said."""

import contextlib
import os
import random
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import numpy as np
import pytest

import tests.conftest
from focus_jax.config import Config, of_model
from focus_jax.errors import CONTINUE_ME, CannotWrite, UserError
from focus_jax.parallel.mesh import make_mesh
from focus_jax.run_folder import RunFolder
from focus_jax.training.checkpoints import Checkpoints, Unusable
from focus_jax.training.learner import Learner
from tests import commands
from tests.changes import changed
from tests.training.runs import events, final_states, rows, start

EVERY_STEP = 1e-9
"""Minutes between two checkpoints by wall time, so that there is one after every step."""


@pytest.fixture
def run(run: Config) -> Config:
    return changed(run, model={"layers": 1}, evaluation={"top_k": (1,)})


def named(run: Config, name: str) -> Config:
    return changed(run, run=f"{run.run}-{name}")


def folder_of(run: Config) -> RunFolder:
    return RunFolder(Path(run.run))


def steps_saved(run: Config) -> list[int]:
    return sorted(int(path.name) for path in folder_of(run).checkpoints.iterdir() if path.name.isdigit())


def assert_same_run(one: Config, other: Config) -> None:
    assert rows(one) == rows(other)
    jax.tree.map(np.testing.assert_array_equal, final_states(one), final_states(other))
    stored = {path.relative_to(folder_of(one).evaluations) for path in folder_of(one).evaluations.rglob("*.npz")}
    assert stored == {p.relative_to(folder_of(other).evaluations) for p in folder_of(other).evaluations.rglob("*.npz")}
    for name in stored:
        with np.load(folder_of(one).evaluations / name) as a, np.load(folder_of(other).evaluations / name) as b:
            for key in a:
                np.testing.assert_array_equal(a[key], b[key])


def test_checkpoints_by_wall_time_change_nothing_and_are_gone_on_from(run, text):
    run = changed(run, models=("focus",))
    whole = changed(named(run, "whole"), checkpoint={"every_minutes": None})
    often = changed(named(run, "often"), checkpoint={"every_minutes": EVERY_STEP, "keep": 1, "keep_every": 8})
    assert start(whole) == 0
    assert steps_saved(whole) == [4, 8, 12]
    assert start(often) == 0
    assert steps_saved(often) == [8, 11, 12]
    assert_same_run(often, whole)
    shutil.rmtree(folder_of(often).checkpoints / "12")
    assert start(often) == 0
    assert events(often)[-1]["step"] == 11
    assert_same_run(often, whole)


def test_two_processes_do_not_train_in_one_folder(run, text):
    with folder_of(run).alone(), pytest.raises(UserError, match=r"run: another process is training in this folder"):
        start(run)
    assert not folder_of(run).config.exists()


# Damage.


DAMAGE: dict[str, Callable[[Path], object]] = {
    "removed": lambda path: path.unlink(),
    "truncated": lambda path: os.truncate(path, path.stat().st_size // 2),
    "altered": lambda path: path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:]),
}


@pytest.fixture(scope="module")
def finished_once(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Config]:
    """The folder of a finished run, and its config, whose paths are relative to that folder's parent."""
    folder = tmp_path_factory.mktemp("finished")
    tests.conftest.text.__wrapped__(folder)
    run = changed(
        tests.conftest.run.__wrapped__(folder),
        run="run",
        model={"layers": 1},
        data={"files": ("text/*.txt",), "store": "store"},
        evaluation={"top_k": (1,)},
    )
    with contextlib.chdir(folder):
        assert start(run) == 0
    return folder, run


@pytest.fixture
def finished(finished_once: tuple[Path, Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    """A copy of it in the current folder."""
    folder, run = finished_once
    shutil.copytree(folder, tmp_path / "finished")
    monkeypatch.chdir(tmp_path / "finished")
    return run


@contextlib.contextmanager
def usable_in(run: Config) -> Iterator[Callable[[], tuple[int | None, list[Unusable]]]]:
    """To be asked for the newest usable checkpoint, as often as one likes."""
    learners = [Learner(name, of_model(run, name), make_mesh(run.mesh)) for name in run.models]
    abstract = {learner.name: learner.abstract_state() for learner in learners}
    checkpoints = Checkpoints(folder_of(run).checkpoints)
    yield lambda: checkpoints.newest_usable(abstract)
    checkpoints.close()


def newest_usable(run: Config) -> tuple[int | None, list[Unusable]]:
    with usable_in(run) as newest:
        return newest()


def test_any_damage_to_any_file_of_a_checkpoint_is_found_and_named(finished, tmp_path, capsys):
    newest, kept = folder_of(finished).checkpoints / "12", tmp_path / "kept"
    shutil.copytree(newest, kept)
    files = [path.relative_to(kept) for path in sorted(kept.rglob("*")) if path.is_file() and path.stat().st_size]
    assert len(files) > 40
    with usable_in(finished) as usable:
        for name in files:
            for damage in DAMAGE.values():
                damage(newest / name)
                step, unusable = usable()
                assert (step, [checkpoint.step for checkpoint in unusable]) == (8, [12]), name
                assert unusable[0].problem.startswith(str(name)), name
                shutil.copyfile(kept / name, newest / name)
        assert usable() == (12, [])
    with capsys.disabled():
        ways = ", ".join(DAMAGE)
        print(f"\n{len(files)} files of a checkpoint, each {ways}: {len(files) * len(DAMAGE)} found and named")


def test_a_damaged_checkpoint_is_said_and_the_one_before_it_used(finished, capsys):
    before = rows(finished)
    newest = folder_of(finished).checkpoints / "12"
    largest = max((path for path in newest.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    DAMAGE["altered"](largest)
    assert start(finished) == 0
    said = f"{newest}: {largest.relative_to(newest)} "
    assert said in capsys.readouterr().out
    event = next(row for row in events(finished) if row["name"] == "unusable_checkpoint")
    assert event["message"].startswith(said)
    assert event["message"].endswith("it is now 12.unusable, and the run goes on from checkpoint 8")
    assert rows(finished) == before
    assert steps_saved(finished) == [4, 8, 12]


def test_nothing_is_begun_anew_where_the_only_checkpoint_is_damaged(finished):
    for step in ("8", "12"):
        shutil.rmtree(folder_of(finished).checkpoints / step)
    damaged = folder_of(finished).checkpoints / "4" / "focus.model" / "_METADATA"
    damaged.unlink()
    before = folder_of(finished).metrics.read_bytes()
    with pytest.raises(UserError, match=r"checkpoints/4: focus\.model/_METADATA is missing, and there is no other"):
        start(finished)
    assert folder_of(finished).metrics.read_bytes() == before
    damaged.parent.parent.joinpath("manifest.json").unlink()
    # Now it looks like what a kill during the first save leaves.
    assert start(finished) == 0


def test_a_checkpoint_of_another_model_is_not_gone_on_from(finished, capsys):
    wider = changed(finished, model={"mlp_width": 64})
    learners = [Learner(name, of_model(wider, name), make_mesh(wider.mesh)) for name in wider.models]
    for learner in learners:
        learner.initialise()
    shutil.rmtree(folder_of(finished).checkpoints / "12")
    checkpoints = Checkpoints(folder_of(finished).checkpoints, finished.checkpoint)
    checkpoints.save(12, {learner.name: learner.state for learner in learners}, {})
    checkpoints.close()
    assert start(finished) == 0
    said = (
        r"checkpoints/12: focus\.model\.params\.\S+ is float32\[.*64.*\] and the config's model has float32\[.*48.*\]"
    )
    assert re.search(said, capsys.readouterr().out)


def test_lost_metrics_and_a_damaged_evaluation_are_said_and_training_goes_on(finished):
    shutil.rmtree(folder_of(finished).checkpoints / "12")
    folder_of(finished).metrics.unlink()
    DAMAGE["truncated"](folder_of(finished).evaluation(8) / "focus_soft.npz")
    assert start(finished) == 0
    said = {row["name"]: row["message"] for row in events(finished)}
    assert said["lost_metrics"] == "run/metrics.jsonl was gone, with all rows before"
    assert said["unusable_evaluation"].startswith("run/evaluations/8/focus_soft.npz: damaged")
    assert {row["switch_rate"] for row in rows(finished) if row["kind"] == "groups"} == {None}


def test_a_damaged_config_of_a_run_is_named(finished):
    folder_of(finished).config.write_text(folder_of(finished).config.read_text()[:-40])
    with pytest.raises(UserError, match=r"config\.json: file: .*bring it back to continue that run, or start another"):
        folder_of(finished).check(finished)


# Kills, through the real command.


def is_saving(run: Config) -> bool:
    """A checkpoint has been begun and is not complete."""
    checkpoints = folder_of(run).checkpoints
    names = list(checkpoints.iterdir()) if checkpoints.is_dir() else []
    return any("tmp" in path.name or (path.name.isdigit() and not (path / "manifest.json").exists()) for path in names)


def lines_of(run: Config) -> int:
    return len(folder_of(run).metrics.read_bytes().splitlines()) if folder_of(run).metrics.exists() else 0


def wait_until(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    while process.poll() is None and not condition():
        time.sleep(0.002)


def wait_for_rows(run: Config, more: int, process: subprocess.Popen[str]) -> None:
    """Until this process has written some."""
    before = lines_of(run)
    wait_until(lambda: lines_of(run) != before, process)
    enough = lines_of(run) + more
    wait_until(lambda: lines_of(run) > enough, process)


@pytest.mark.slow
def test_a_run_killed_twenty_times_equals_an_uninterrupted_one(run, text, tmp_path, capsys):
    """Four kills while the process starts, eight while it trains, eight when it has begun a save."""
    run = changed(run, training={"steps": 1500}, telemetry={"log_every": 1}, checkpoint={"every": 250})
    whole, killed = (named(run, name) for name in ("whole", "killed"))
    often = ("--checkpoint.every-minutes", str(0.2 / 60))
    files = {}
    for one in (whole, killed):
        (tmp_path / Path(one.run).name).mkdir()
        files[one.run] = commands.write_config_file(tmp_path / Path(one.run).name, one)

    def begin(one: Config, *overrides: str) -> subprocess.Popen[str]:
        return commands.start("train.py", "--config", files[one.run], *overrides, compiled=tmp_path / "compiled")

    def end(one: Config) -> None:
        process = begin(one)
        _, complained = process.communicate(timeout=300)
        assert process.returncode == 0, complained

    end(whole)
    rng = random.Random(0)
    remains, start_takes = 0, 0.0
    for kill in range(20):
        begun_at = time.monotonic()
        process = begin(killed, *often)
        if kill % 5 == 4:
            time.sleep(rng.uniform(0, start_takes))
        else:
            wait_for_rows(killed, 0, process)
            start_takes = time.monotonic() - begun_at
            wait_for_rows(killed, rng.randint(1, 50), process)
        if kill % 5 in (2, 3):
            wait_until(lambda: is_saving(killed), process)
            time.sleep(rng.uniform(0, 0.05))
        process.kill()
        assert process.wait() == -signal.SIGKILL, process.communicate()
        remains += is_saving(killed)
    end(killed)
    assert_same_run(killed, whole)
    assert remains >= 3
    with capsys.disabled():
        print(f"\n20 kills survived, {remains} of them with a save unfinished")


@pytest.mark.slow
def test_signals_and_a_second_process(run, text, tmp_path):
    run = changed(run, training={"steps": 100_000}, checkpoint={"every": 50_000})
    path = commands.write_config_file(tmp_path, run)
    process = commands.start("train.py", "--config", path, compiled=tmp_path / "compiled")
    wait_until(lambda: lines_of(run) > 1, process)
    second = commands.start("train.py", "--config", path, compiled=tmp_path / "compiled")
    assert "another process is training in this folder" in second.communicate(timeout=100)[1]
    assert second.returncode == 2
    process.send_signal(signal.SIGTERM)
    said, complained = process.communicate(timeout=100)
    assert process.returncode == CONTINUE_ME, complained
    step = steps_saved(run)[-1]
    assert f"stopped after step {step}; run the same command again to continue" in said
    assert newest_usable(run) == (step, [])


@contextlib.contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[None]:
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {mounted.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_is_said_and_the_last_checkpoint_kept(run, text, tmp_path, monkeypatch):
    disk = tmp_path / "disk"
    run = changed(run, run=str(disk / "run"), checkpoint={"every": 2, "keep": 100})
    with small_disk(disk, 3):
        said = (
            r"a checkpoint could not be saved: No space left on device; the last good checkpoint is .*/checkpoints/\d+"
        )
        with pytest.raises(CannotWrite, match=said) as error:
            start(run)
        last = steps_saved(run)[-1]
        assert f"checkpoints/{last}; make room and run the same command again" in str(error.value)
        assert newest_usable(run) == (last, [])
        assert last < 12
        (disk / "run" / "report.html").unlink(missing_ok=True)
        for step in steps_saved(run)[:-1]:
            shutil.rmtree(folder_of(run).checkpoints / str(step))
        assert start(changed(run, checkpoint={"keep": 1})) == 0
    assert error.value.exit_code == 74
