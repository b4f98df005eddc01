"""The benchmark of whole train steps: its rows and its bound, never its times."""

import argparse
import json

import pytest

from focus_jax.accounting import flops
from focus_jax.bench import training
from focus_jax.config import dense_twin
from focus_jax.errors import exit_code


def options(**changes) -> argparse.Namespace:
    return argparse.Namespace(**({"groups": 8, "top_k": 1, "window": 128, "probes": 32} | changes))


def test_bounds_of_evenly_used_groups_are_those_of_the_goal():
    """About 1.9 at 4K tokens and 3.6 at 16K, with the probe rows."""
    for tokens, bound in ((4096, 1.9), (16384, 3.6)):
        run = training.bench_config(options(), tokens)
        focus = flops.executed(run, flops.even_fraction(run))
        assert flops.executed(dense_twin(run), 1.0) / focus == pytest.approx(bound, rel=0.05)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ("--top-k 9", "at 1024 tokens: attention.top_k: 9 is more than the 8 groups"),
        ("--groups 100", "at 1024 tokens: attention.groups: "),
        ("--tokens 64 --window 10 --probes 64", "at 64 tokens: attention.probes: 64 leave none of the 53 rows"),
        ("--json missing/rows.json", "--json missing/rows.json: name a file in a folder that is there"),
    ],
)
def test_options_that_make_no_sense_leave_the_file_as_it_is(changes, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.json").write_text("before")
    assert exit_code(lambda: training.main(["--json", "rows.json", *changes.split()])) == 2
    assert message in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["rows.json"]
    assert (tmp_path / "rows.json").read_text() == "before"


@pytest.mark.slow
def test_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(training, "MATMUL_SIZE", {"cpu": 64})
    monkeypatch.setattr(training, "SETTLING_STEPS", 1)
    monkeypatch.setattr(training, "SETTLING_TOKENS", 64)
    path = tmp_path / "rows.json"
    small = ["--tokens", "64", "--window", "8", "--groups", "2", "--probes", "2", "--repeats", "1"]
    assert training.main([*small, "--json", str(path)]) == 0
    dense, focus = json.loads(path.read_text())
    assert (dense["model"], focus["model"]) == ("dense", "focus")
    assert dense["speedup"] == dense["bound"] == dense["kept_fraction"] == 1
    assert 0.2 < focus["kept_fraction"] < 1
    assert focus["tokens_per_second"] == pytest.approx(64 / focus["seconds_per_step"])
