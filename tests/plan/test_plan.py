"""Plans of every config by shapes alone, against published sizes and by hand; the command."""

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from focus_jax import h200
from focus_jax.config import dense_twin
from focus_jax.config_loading import load
from focus_jax.errors import exit_code
from focus_jax.model import parameter_count
from focus_jax.plan import __main__ as command
from focus_jax.plan.plan import Plan, make_plan
from tests.changes import changed
from tests.commands import ROOT

CONFIGS = sorted(path.stem for path in (ROOT / "configs").glob("*.py"))
TRACED_SOON = ("demo", "gpt2_124m", "llama_7b")
PARAMETERS = {
    "gpt2_124m": 124_439_808,
    "gpt2_355m": 354_823_168,
    "gpt2_774m": 774_030_080,
    "gpt2_1558m": 1_557_611_200,
    "llama_3b": 28 * (2 * 3072 * (3072 + 1024) + 3 * 3072 * 8192) + 2 * 32000 * 3072 + 57 * 3072,
    "llama_7b": 6_738_415_616,
    "llama_7b_gqa": 7_241_732_096,
}
LONG = "--training.sequence-length 32768 --training.batch-size 16"


@functools.cache
def plan(name: str, devices: int, *overrides: str, compiled: bool = False) -> Plan:
    path = ROOT / "configs" / f"{name}.py"
    return make_plan(path, load(path, overrides), devices, compiled=compiled)


@pytest.mark.parametrize(
    "name",
    [name if name in TRACED_SOON else pytest.param(name, marks=pytest.mark.slow) for name in CONFIGS],
)
def test_every_config_is_planned(name):
    planned = plan(name, 8)
    assert planned.fits
    for needs in planned.models:
        assert needs.flops_executed > 0.3 * needs.flops_dense_equivalent
        assert needs.temporary_bytes > 0
    assert {needs.model for needs in planned.models} == {"focus", "dense"}


@pytest.mark.parametrize("name", PARAMETERS)
def test_sizes_are_the_published_ones(name):
    run = load(ROOT / "configs" / f"{name}.py")
    assert parameter_count(changed(dense_twin(run), model={"vocab_multiple": 1})) == PARAMETERS[name]


def test_state_is_counted_by_hand():
    """Three float32 values for a parameter, an eighth on each device; norms and routers are whole on all of them."""
    planned = plan("llama_7b", 8)
    norms, routers = 65 * 4096, 32 * 16 * (4096 + 8)
    for needs, whole in zip(planned.models, (norms + routers, norms), strict=True):
        carried = 4 * 32 * (8 + 16 + 1) if needs.model == "focus" else 0
        # Beside them there are scalars.
        assert needs.state_bytes == pytest.approx(12 * ((needs.parameters - whole) / 8 + whole) + carried, abs=100)
    assert planned.state_bytes == sum(needs.state_bytes for needs in planned.models)
    alone = plan("gpt2_124m", 1, "--models", "dense")
    assert alone.state_bytes == pytest.approx(12 * alone.models[0].parameters, abs=100)


def test_more_devices_microbatches_and_rematerialisation_take_less():
    def temporaries(devices: int, *overrides: str) -> int:
        return plan("gpt2_124m", devices, "--models", "dense", "--model.layers", "2", *overrides).temporary_bytes

    whole = temporaries(8)
    assert temporaries(1) > 7 * whole
    assert temporaries(8, "--training.microbatches", "8") < whole
    policies = [temporaries(8, "--training.remat", policy) for policy in ("none", "dots", "attention", "full")]
    assert policies == sorted(policies, reverse=True)
    assert len(set(policies)) == 4
    assert not plan("llama_7b", 1).fits


def test_the_command_says_what_it_did_and_writes_json(tmp_path, capsys):
    path = tmp_path / "plan.json"
    config = str(ROOT / "configs" / "gpt2_124m.py")
    assert command.main(["--config", config, "--devices", "8", "--shapes-only", "--json", str(path)]) == 0
    said = capsys.readouterr().out
    assert "by shapes alone" in said
    assert "fits" in said
    found = json.loads(path.read_text())
    assert found.keys() >= {"config", "devices", "fits", "bytes_per_device", "collectives", "flops_per_token"}
    assert (found["config"], found["devices"], found["fits"], found["collectives"]) == (config, 8, True, None)
    focus = found["models"]["focus"]
    seconds = 512 * 1024 * focus["flops_per_token"]["executed"] / (0.4 * 8 * 989e12)
    assert focus["seconds_per_step"] == pytest.approx(seconds)


def test_without_the_packages_it_goes_by_shapes_and_says_so(monkeypatch, capsys):
    monkeypatch.setattr(h200, "can_compile", lambda: False)
    assert command.main(["--config", str(ROOT / "configs" / "demo.py"), "--devices", "1"]) == 0
    said = capsys.readouterr().out
    assert "requirements-h200.txt are not installed, so nothing is compiled" in said
    assert "by shapes alone (temporaries are an estimate)" in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--devices 0", "error: --devices: needs at least 1, is 0"),
        ("--devices 8 --utilisation 2", "error: --utilisation: needs more than 0 and at most 1, is 2.0"),
        ("--devices 7", "error: training.batch_size: 512 sequences in 1 microbatches do not divide among data 7"),
        ("--devices 8 --mesh.data 3", "error: mesh: data 3 · fsdp 1 · tensor 1 make 3 devices, and there are 8"),
        ("--devices 8 --mesh.data 1 --mesh.tensor -1", "error: model.heads: 12 do not divide among the 8 devices"),
    ],
)
def test_what_cannot_be_divided_is_named(arguments, said, capsys):
    config = str(ROOT / "configs" / "gpt2_124m.py")
    code = exit_code(lambda: command.main(["--config", config, "--shapes-only", *arguments.split()]))
    assert code == 2
    assert said in capsys.readouterr().err


def test_several_configs_make_a_table(capsys):
    configs = [str(ROOT / "configs" / f"{name}.py") for name in ("gpt2_124m", "demo")]
    assert command.main(["--config", *configs, "--devices", "1", "--shapes-only"]) == 0
    assert capsys.readouterr().out.count("\n| ") == 3


def compiled_plan(tmp_path: Path, name: str, devices: int, *overrides: str) -> dict:
    """By the command, where `make check-h200` has put the packages."""
    packages = ROOT / ".h200"
    if not (packages / ".installed").exists():
        pytest.skip("make check-h200 installs what this needs")
    path = tmp_path / "plan.json"
    environment = {**os.environ, "PYTHONPATH": str(packages), "JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "2"}
    arguments = ["--config", f"configs/{name}.py", "--devices", str(devices), "--json", str(path), *overrides]
    done = subprocess.run(
        [sys.executable, "-m", "focus_jax.plan", *arguments], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return json.loads(path.read_text())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "devices", "overrides"),
    [
        ("gpt2_124m", 1, "--models focus --training.microbatches 8"),
        ("llama_7b", 8, "--models focus"),
        ("llama_7b", 8, LONG),
    ],
)
def test_it_fits_and_compiles_for_h200s(tmp_path, name, devices, overrides):
    found = compiled_plan(tmp_path, name, devices, *overrides.split())
    assert found["compiled"]
    assert found["fits"]
    assert bool(found["collectives"]) == (devices > 1)
    # What the shapes say is of the right size.
    estimated = plan(name, devices, *overrides.split())
    measured = found["bytes_per_device"]
    assert measured["state"] == estimated.state_bytes
    assert 0.3 < estimated.temporary_bytes / measured["temporaries"] < 3
