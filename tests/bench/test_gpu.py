"""The GPU script where there is no GPU: kernels interpreted, cuDNN missing, time running out."""

import json
from functools import partial

import jax.numpy as jnp
import numpy as np
import pytest

from focus_jax.accounting.pairs import dense_pairs, kept_pairs
from focus_jax.bench import gpu, kernel_checks
from focus_jax.bench.programs import Program, compile_all, interleaved_seconds
from focus_jax.bench.report import Report
from focus_jax.bench.routing import balanced_groups
from focus_jax.ops.pallas import interpreted

ROW = {
    "tokens", "top_k", "groups", "window", "heads", "channels", "batch", "dtype", "device", "direction",
    "implementation", "dense_implementation", "dense_seconds", "focus_seconds", "speedup", "bound", "commit",
}  # fmt: skip


def test_pairs_are_counted_exactly():
    groups_TM = balanced_groups(1, 200, 5, 3)[0]
    assert np.bincount(groups_TM[:, 0]).tolist() == [40] * 5
    assert all(len(set(row)) == 3 for row in groups_TM)
    distance_TT = np.arange(200)[:, None] - np.arange(200)
    joined_TT = (groups_TM[:, None, :] == groups_TM[None, :, :1]).any(axis=2)
    kept_TT = (distance_TT >= 0) & ((distance_TT <= 7) | joined_TT)
    assert kept_pairs(groups_TM, groups_TM[:, 0], 7) == kept_TT.sum()
    assert dense_pairs(200) == (distance_TT >= 0).sum()


def test_failing_programs_leave_the_others():
    def refuses(x):
        raise NotImplementedError("not\nhere")

    ones = (jnp.ones(3),)
    compiled, failures = compile_all([Program("refuses", refuses, ones), Program("works", jnp.sin, ones)])
    seconds, more_failures = interleaved_seconds(compiled, repeats=2)
    assert failures == {"refuses": "NotImplementedError: not"}
    assert seconds.keys() == {"works"}
    assert not more_failures


def test_needs_a_gpu(tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        gpu.main(["--json", str(tmp_path / "rows.json")])
    assert ended.value.code == 2
    assert "needs an NVIDIA GPU, this is cpu" in capsys.readouterr().err


@pytest.mark.slow
def test_keeps_what_it_has(tmp_path, monkeypatch):
    monkeypatch.setattr(kernel_checks, "checks", partial(kernel_checks.checks, T=130, heads=2, kv_heads=1))
    path = tmp_path / "rows.json"
    settings = (
        gpu.Setting(tokens=256, batch=2, heads=2, channels=64, repeats=2),
        gpu.Setting(tokens=1 << 24, batch=1, heads=2, channels=64, repeats=1),
    )
    with interpreted():
        assert gpu.run(settings, seconds=600, report=Report(path))
    rows = json.loads(path.read_text())
    checks = [row for row in rows if row["kind"] == "check"]
    assert len(checks) == 6
    assert all(row["passed"] and row["repeatable"] for row in checks)
    speeds = [row for row in rows if row["kind"] == "speed"]
    assert {(row["direction"], row["top_k"]) for row in speeds} == {(d, m) for d in ("forward", "both") for m in (1, 2)}
    assert all(row.keys() >= ROW and row["dense_implementation"] == "pallas" for row in speeds)
    assert all(row["speedup"] == row["dense_seconds"] / row["focus_seconds"] for row in speeds)
    notes = {row["what"] for row in rows if row["kind"] == "note"}
    assert notes == {"dense cudnn forward", "dense cudnn both", "left out"}
