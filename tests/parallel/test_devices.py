"""The same model on 1, 2, 4 and 8 devices, divided every way: the same loss, gradients, groups and ten steps."""

import json
import subprocess
import sys

import numpy as np
import pytest

from focus_jax import config_loading
from focus_jax.config import Config, dense_twin
from tests.changes import changed
from tests.commands import ROOT

MESHES = ("2,1,1", "1,2,1", "1,1,2", "2,2,1", "1,2,2", "1,8,1", "2,2,2", "1,2,4")
SOME = ("2,1,1", "1,2,2", "1,8,1", "2,2,2")


@pytest.fixture
def run(run: Config) -> Config:
    """The vocabulary of 257 divides by no axis; the embedding has 384 rows."""
    return changed(
        run,
        model={"heads": 8, "kv_heads": 4, "mlp_width": 64},
        attention={"training": "soft", "probes": 6},
        training={"batch_size": 8},
    )


def outcomes(tmp_path, run: Config, steps: int, meshes: tuple[str, ...]) -> dict[str, dict]:
    path = tmp_path / "run.json"
    path.write_text(config_loading.to_json(run))
    done = subprocess.run(
        [sys.executable, "-m", "tests.parallel.eight_devices", str(path), str(steps), "1,1,1", *meshes],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def check(found: dict[str, dict]) -> None:
    one = found.pop("1,1,1")
    for sizes, other in found.items():
        assert other["groups_differ_clearly"] == 0, sizes
        # Where no token changed its group, what follows is with the same assignments.
        assert other["groups_differ"] == 0, sizes
        assert other["losses"][0] == pytest.approx(one["losses"][0], rel=1e-6), sizes
        assert other["grad_norms"][0] == pytest.approx(one["grad_norms"][0], rel=1e-5), sizes
        assert other["gradients"] < 1e-5, sizes
        assert other["potentials"] < 1e-5, sizes
        np.testing.assert_allclose(other["losses"], one["losses"], rtol=1e-4, err_msg=sizes)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["soft", "dense", "distill"])
def test_a_mixed_mesh_of_eight_computes_what_one_device_does(run, tmp_path, kind):
    run = changed(run, model={"layers": 1}, training={"microbatches": 2})
    if kind == "dense":
        run = changed(dense_twin(run), models=("dense",))
    if kind == "distill":
        run = changed(run, attention={"training": "hard", "router": "distill"})
    check(outcomes(tmp_path, run, 3, ("2,2,2",)))


@pytest.mark.slow
def test_every_mesh_computes_what_one_device_does(run, tmp_path):
    check(outcomes(tmp_path, run, 10, MESHES))


@pytest.mark.slow
def test_hard_patterns_are_the_same_on_all_kinds_of_meshes(run, tmp_path):
    check(outcomes(tmp_path, changed(run, attention={"training": "hard", "router": "gate"}), 10, SOME))
