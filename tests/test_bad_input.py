"""Bad input through the real commands: one line that names the field or file, the documented exit code, no traceback.

Every case starts in a copy of one folder: text, its token store, a finished run of four steps, and its config file.
"""

import contextlib
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import eval as eval_command
import train as train_command
from focus_jax.config import Config
from focus_jax.data import prepare
from focus_jax.errors import exit_code
from focus_jax.evaluation.report import __main__ as report
from focus_jax.run_folder import RunFolder
from focus_jax.telemetry import dashboard
from tests.bad_inputs import CASES, TRAIN, Case
from tests.changes import changed
from tests.commands import write_config_file

COMMANDS = {
    "train": train_command.main,
    "eval": eval_command.main,
    "prepare": prepare.main,
    "report": report.main,
    "dashboard": dashboard.main,
}
NOBODY = 65534


def call(line: str) -> int:
    program, *arguments = shlex.split(line)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [program, *arguments])
        try:
            return exit_code(COMMANDS[program])
        except SystemExit as end:
            return end.code if isinstance(end.code, int) else 1


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.conftest import run as tiny
    from tests.conftest import text

    folder = tmp_path_factory.mktemp("prepared")
    text.__wrapped__(folder)
    run: Config = changed(
        tiny.__wrapped__(folder),
        run="run",
        model={"layers": 1},
        data={"files": ("text/*.txt",), "store": "store"},
        training={"steps": 4},
        optimizer={"warmup_steps": 1},
        evaluation={"top_k": (1,)},
        checkpoint={"every": 2},
    )
    with contextlib.chdir(folder):
        write_config_file(Path(), run)
        assert call(TRAIN) == 0
    return folder


@pytest.fixture
def place(prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder."""
    folder = tmp_path / "place"
    shutil.copytree(prepared, folder)
    monkeypatch.chdir(folder)
    return folder


@contextlib.contextmanager
def user(powerless: bool) -> Iterator[None]:
    if not powerless or os.geteuid():
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.line} {case.message}"[:80])
def test_bad_input(case: Case, place: Path, monkeypatch, capfd):
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("HOME", str(place))
    case.setup()
    if case.powerless:
        # pytest's own folders are closed to others.
        for folder in place.parents:
            if not folder.stat().st_mode & 0o001:
                folder.chmod(0o711)
        place.chmod(0o777)
    before = _content_of_run()
    with user(case.powerless):
        code = call(case.line)
    said = capfd.readouterr().err
    assert code == case.code, said
    assert re.search(case.message, _unwrapped(said)), said
    assert "Traceback" not in said
    assert _content_of_run() == before or not case.changes_nothing


def _content_of_run() -> dict[Path, bytes]:
    """What a run consists of; a lock and W&B's own files may come."""
    folder = RunFolder(Path("run"))
    files = [folder.config, folder.metrics, *folder.checkpoints.rglob("*"), *folder.evaluations.rglob("*")]
    return {path: path.read_bytes() for path in files if path.is_file()}


def _unwrapped(text: str) -> str:
    """tyro draws a box around its messages."""
    return re.sub(r"[│╭╮╰╯─\s]+", " ", text)


def test_there_are_enough_cases():
    assert len({(case.line, case.message) for case in CASES}) >= 100
