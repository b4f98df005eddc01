"""A trace of a few steps: what TensorBoard and Perfetto open, and where it cannot be had."""

import gzip
import json
from pathlib import Path

import pytest
from jax.profiler import ProfileData

from focus_jax.errors import CONTINUE_ME, UserError
from focus_jax.run_folder import RunFolder
from tests.changes import changed
from tests.training.runs import start, stop_after


def test_the_steps_that_are_named_are_traced(run, text):
    run = changed(run, model={"layers": 1}, models=("dense",), profile={"steps": "3:5"})
    assert start(run) == 0
    folder = RunFolder(Path(run.run)).profile
    [perfetto] = folder.rglob("perfetto_trace.json.gz")
    names = [event.get("name") for event in json.loads(gzip.decompress(perfetto.read_bytes()))["traceEvents"]]
    assert names.count("train") == 3
    [xplane] = folder.rglob("*.xplane.pb")
    numbers = [
        dict(event.stats)["step_num"]
        for plane in ProfileData.from_file(str(xplane)).planes
        for line in plane.lines
        for event in line.events
        if event.name == "train"
    ]
    assert sorted(numbers) == [3, 4, 5]


def test_steps_that_are_done_cannot_be_traced(run, text, monkeypatch):
    run = changed(run, model={"layers": 1}, models=("dense",))
    with monkeypatch.context() as patch:
        stop_after(patch, 4)
        assert start(run) == CONTINUE_ME
    with pytest.raises(UserError, match=r"^profile\.steps: 4:6 begins at step 4, but the run goes on after step 5"):
        start(changed(run, profile={"steps": "4:6"}))
