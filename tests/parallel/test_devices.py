"""The same model on 1, 2, 4 and 8 devices, divided every way: the same loss, gradients, groups and ten steps."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from focus_jax import config_loading
from focus_jax.config import Config, dense_twin
from tests.changes import changed
from tests.commands import ROOT

MESHES = ("2,1,1", "1,2,1", "1,1,2", "4,1,1", "1,2,2", "1,1,4", "1,8,1", "2,2,2", "1,2,4")
HARD = ("distill", "gate")
KINDS = ("dense", "soft", *HARD)


@pytest.fixture
def run(run: Config) -> Config:
    """The vocabulary of 257 divides by no axis; the embedding has 384 rows. No token of the first batch of this seed is
    near the border between two groups."""
    return changed(
        run,
        seed=2,
        model={"heads": 8, "kv_heads": 4, "mlp_width": 64},
        attention={"probes": 6},
        training={"batch_size": 16, "microbatches": 2, "scan_layers": True},
    )


def of_kind(run: Config, kind: str) -> Config:
    if kind == "dense":
        return changed(dense_twin(run), models=("dense",))
    return changed(run, attention={"training": "hard", "router": kind}) if kind in HARD else run


def outcomes(tmp_path, run: Config, steps: int, meshes: tuple[str, ...]) -> dict[str, dict]:
    path = tmp_path / "run.json"
    path.write_text(config_loading.to_json(run))
    done = subprocess.run(
        [sys.executable, "-m", "tests.parallel.eight_devices", str(path), str(steps), "1,1,1", *meshes],
        cwd=ROOT,
        # Nearly all of the time is compiling, which optimises what then runs for milliseconds.
        env={**os.environ, "XLA_FLAGS": "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"},
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def check(found: dict[str, dict], *, hard: bool) -> None:
    one = found.pop("1,1,1")
    if hard:
        assert one["smallest_margin"] > 1e-5, "take another seed: a token may go either way"
    for sizes, other in found.items():
        assert other["clearly_assigned_otherwise"] == 0, sizes
        # So what is compared is with the same assignments.
        assert not hard or other["assigned_otherwise"] == 0, sizes
        assert other["losses"][0] == pytest.approx(one["losses"][0], rel=1e-6), sizes
        assert other["router_losses"][0] == pytest.approx(one["router_losses"][0], rel=1e-6), sizes
        assert other["grad_norms"][0] == pytest.approx(one["grad_norms"][0], rel=1e-5), sizes
        assert other["gradients"] < 1e-5, sizes
        assert other["carried"] < 1e-5, sizes
        np.testing.assert_allclose(other["losses"], one["losses"], rtol=1e-4, err_msg=sizes)
        np.testing.assert_allclose(other["router_losses"], one["router_losses"], rtol=1e-4, err_msg=sizes)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_mesh_computes_what_one_device_does(run, tmp_path, kind):
    check(outcomes(tmp_path, of_kind(run, kind), 10, MESHES), hard=kind in HARD)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_so_does_attention_that_holds_only_the_pairs_it_keeps(run, tmp_path, kind):
    run = changed(of_kind(run, kind), model={"attention_implementation": "blockwise"})
    check(outcomes(tmp_path, run, 3, ("2,2,2",)), hard=kind in HARD)
