"""Mistakes in configs and command lines, through the real command: the field named, exit code 2, no JAX."""

import subprocess
import sys
from pathlib import Path

import pytest

from focus_jax import config_loading
from focus_jax.errors import UserError

ROOT = Path(__file__).parent.parent

CONFIG = """
from focus_jax.config import *

def get_config():
    return Config(
        run="{folder}/run",
        model=llama(vocab_size=257, width=32, layers=2, heads=4, kv_heads=2, mlp_width=48),
        attention=Focus(groups=4, top_k=2, window=5),
        data=Data(source="text", files=("{folder}/*.txt",), store="{folder}/store"),
        training=Training(steps=12, batch_size=4, sequence_length=48),
        optimizer=Optimizer(peak_lr=1e-2, warmup_steps=2),
        checkpoint=Checkpoint(every=4),
    )
"""


def load(tmp_path: Path, *overrides: str, text: str = CONFIG):
    path = tmp_path / "tiny.py"
    path.write_text(text.replace("{folder}", str(tmp_path)))
    return config_loading.load(path, overrides)


MISTAKES = [
    ("--model.heads 5", r"^model\.heads: 5 heads do not divide the width 32"),
    ("--model.kv-heads 3", r"^model\.kv_heads: 3 key/value heads do not divide 4"),
    ("--model.heads 32 --model.kv-heads 32", r"^model\.heads: rotary positions need an even head width"),
    ("--model.width 0", r"^model\.width: .*greater than or equal to 1"),
    ("--model.rope-theta -1", r"^model\.rope_theta: .*greater than 0"),
    ("--model.init-std nan", r"^model\.init_std: "),
    ("--attention.top-k 5", r"^attention\.top_k: 5 is more than the 4 groups"),
    ("--attention.groups 0 --attention.top-k 0", r"^attention\.groups: .*greater than or equal to 1"),
    ("--attention.groups 65", r"^attention\.groups: .*less than or equal to 64"),
    ("--attention.window -1", r"^attention\.window: .*greater than or equal to 0"),
    ("--attention.temperature 0", r"^attention\.temperature: "),
    ("--attention.dense-layers 0 2", r"^attention\.dense_layers: there is no layer 2; the last is 1"),
    ("--attention.balance sinkhorn", r"^attention\.balance: .*sees the future.*evaluation\.allow_noncausal"),
    ("--evaluation.top-k 1 9", r"^evaluation\.top_k: 9 is more than the 4 groups"),
    ("--training.microbatches 3", r"^training\.microbatches: 3 does not divide batch_size 4"),
    ("--training.steps 0", r"^training\.steps: "),
    ("--training.loss-chunks 5", r"^training\.loss_chunks: 5 does not divide 48 tokens"),
    ("--profile.steps 10:5", r"^profile\.steps: 10:5 ends before it begins"),
    ("--profile.steps 10:13", r"^profile\.steps: 10:13 goes beyond the 12 training\.steps"),
    ("--profile.steps 0:5", r"^profile\.steps: "),
    ("--profile.steps ten", r"^profile\.steps: "),
    ("--optimizer.warmup-steps 12", r"^optimizer\.warmup_steps: 12 leaves nothing"),
    ("--optimizer.decay-steps 11", r"^optimizer\.decay_steps: with the warm-up"),
    ("--optimizer.peak-lr 0", r"^optimizer\.peak_lr: "),
    ("--optimizer.final-lr-fraction 1.5", r"^optimizer\.final_lr_fraction: "),
    ("--optimizer.beta2 1.0", r"^optimizer\.beta2: "),
    ("--data.validation-fraction 1.0", r"^data\.validation_fraction: "),
    ("--checkpoint.every 0", r"^checkpoint\.every: "),
    ("--models focus focus", r"^models: list one or two different models"),
    ("--seed -1", r"^seed: "),
]


@pytest.mark.parametrize(("overrides", "message"), MISTAKES)
def test_a_bad_value_is_named(tmp_path, overrides, message):
    with pytest.raises(UserError, match=message):
        load(tmp_path, *overrides.split())


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("window=5", "windw=5", "Focus has no field 'windw'; did you mean 'window'"),
        ("layers=2", 'layers="2"', r"model\.layers: .*valid integer \(it is '2'\)"),
        ("steps=12", "steps=12.0", r"training\.steps: "),
        ('files=("{folder}/*.txt",)', "files=[3]", r"data\.files"),
        ("Focus(groups=4, top_k=2, window=5)", "Dense()", r'models: lists "focus" but attention is Dense'),
        ("Focus(groups=4, top_k=2, window=5)", "None", r"attention: "),
        ("top_k=2, ", "", "top_k"),
        ("def get_config", "def config", r"has no function get_config\(\)"),
        ("return Config(", "return dict(", "it must return a Config"),
        ("steps=12", "steps=", r"expected argument value expression \(tiny\.py, line 10\)"),
    ],
)
def test_a_mistake_in_the_file_is_named(tmp_path, old, new, message):
    assert old in CONFIG
    with pytest.raises(UserError, match=message) as error:
        load(tmp_path, text=CONFIG.replace(old, new))
    assert str(error.value).startswith(str(tmp_path / "tiny.py"))
    assert "\n" not in str(error.value)


def test_a_missing_file_suggests_its_neighbour(tmp_path):
    (tmp_path / "demo.py").touch()
    with pytest.raises(UserError, match=r"no such config file; did you mean .*demo\.py"):
        config_loading.load(tmp_path / "demos.py")


def test_overrides_reach_every_section_but_the_kind_of_attention(tmp_path):
    run = load(tmp_path, "--attention.window", "7", "--optimizer.peak-lr", "3e-4", "--models", "dense", "--seed", "3")
    assert (run.attention.window, run.optimizer.peak_lr, run.models, run.seed) == (7, 3e-4, ("dense",), 3)


def test_config_survives_the_round_trip_through_its_file(tmp_path):
    run = load(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(config_loading.to_json(run))
    assert config_loading.read_json(path) == run
    path.write_text(path.read_text().replace('"groups": 4', '"groups": 0'))
    with pytest.raises(UserError, match=r"attention"):
        config_loading.read_json(path)
    path.write_text("{")
    with pytest.raises(UserError, match=r"config\.json: file: .*JSON"):
        config_loading.read_json(path)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ("--attention.top-k 9", "error: attention.top_k: 9 is more than the 4 groups\n"),
        ("--attention.topk 2", "--attention.top-k"),
        ("--training.steps many", "--training.steps"),
    ],
)
def test_the_command_ends_with_code_2_before_jax_is_loaded(tmp_path, overrides, message):
    (tmp_path / "tiny.py").write_text(CONFIG.replace("{folder}", str(tmp_path)))
    program = (
        "import sys, runpy, atexit\n"
        "atexit.register(lambda: print('jax' in sys.modules))\n"
        "runpy.run_path('train.py', run_name='__main__')"
    )
    command = [sys.executable, "-c", program, "--config", str(tmp_path / "tiny.py"), *overrides.split()]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stdout.strip() == "False"
    assert not (tmp_path / "run").exists()
