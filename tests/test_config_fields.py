"""Every field of a config does something: each is changed, and something that it promises to change is seen to change.

Fields of `data` have their tests in tests/data, those of W&B in tests/telemetry.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from focus_jax.config import Config, gpt2
from focus_jax.evaluation.readings import readings_of
from focus_jax.model import Reading
from focus_jax.training.optimizer import make_optimizer
from focus_jax.training.state import build
from tests.changes import changed

TOKENS_BT = jax.random.randint(jax.random.key(0), (2, 40), 0, 257)

MODEL = {
    "vocab_size": 200,
    "vocab_multiple": 64,
    "width": 64,
    "layers": 3,
    "heads": 2,
    "kv_heads": 4,
    "mlp_width": 64,
    "mlp": "gelu",
    "norm": "layernorm",
    "norm_epsilon": 1e-2,
    "positions": "learned",
    "rope_theta": 100.0,
    "biases": True,
    "tied_embeddings": True,
    "qk_norm": True,
    "init_std": 0.1,
    "scale_residual_init": True,
    "compute_dtype": "bfloat16",
}
FOCUS = {
    "groups": 5,
    "window": 9,
    "routing_width": 4,
    "scores": "dot",
    "score_std": 3.0,
    "gate": "sigmoid",
    "dense_layers": (1,),
}
OPTIMIZER = {
    "peak_lr": 2e-2,
    "warmup_steps": 4,
    "decay": "linear",
    "decay_steps": 4,
    "final_lr_fraction": 0.5,
    "beta1": 0.5,
    "beta2": 0.5,
    "epsilon": 1.0,
    "weight_decay": 0.5,
    "clip_norm": 1e-3,
    "router_lr_multiplier": 2.0,
}
ELSEWHERE = {
    # Own tests below.
    "attention.temperature",
    "model.position_init_std",
    "model.attention_implementation",
    "attention.top_k",
    "attention.training",
    "attention.hard_from_step",
    "attention.router",
    "attention.probes",
    "attention.balance",
    "attention.balance_rate",
    "attention.sinkhorn_rounds",
    "attention.gate_slope",
    "attention.membership",
    "seed",
    # tests/training/test_step.py and test_loop.py
    "training.steps",
    "training.batch_size",
    "training.sequence_length",
    "training.microbatches",
    # tests/training/test_loss.py and tests/model/test_stack.py
    "training.loss_chunks",
    "training.remat",
    "training.scan_layers",
    # tests/training/test_trace.py
    "profile.steps",
    # tests/test_commands.py
    "run",
    "models",
    "checkpoint.every",
    "checkpoint.keep",
    "checkpoint.keep_every",
    # tests/parallel
    "mesh.data",
    "mesh.fsdp",
    "mesh.tensor",
    "mesh.join_seconds",
    # tests/training/test_survival.py and test_guard.py
    "checkpoint.every_minutes",
    "guard.bad_update",
    "guard.spike_deviations",
    "guard.spike_window",
    "evaluation.sequences",
    "evaluation.batch_size",
    "evaluation.top_k",
    "evaluation.allow_noncausal",
    "telemetry.log_every",
    # tests/telemetry
    "telemetry.progress",
    "telemetry.wandb",
    "telemetry.wandb_project",
    "telemetry.wandb_entity",
    "telemetry.wandb_checkpoints",
}


@pytest.fixture
def run(run: Config) -> Config:
    """Equal from test to test, so that outcomes are computed once."""
    return changed(run, run="run", data={"files": (), "store": "store"})


def test_no_field_is_forgotten(run):
    names = set()
    for field in dataclasses.fields(run):
        value = getattr(run, field.name)
        parts = dataclasses.fields(value) if dataclasses.is_dataclass(value) else []
        names |= {f"{field.name}.{part.name}" for part in parts} or {field.name}
    covered = {f"{section}.{name}" for section, table in SECTIONS.items() for name in table} | ELSEWHERE
    assert {name for name in names if not name.startswith("data.")} == covered


SECTIONS = {"model": MODEL, "attention": FOCUS, "optimizer": OPTIMIZER}


@functools.cache
def outcome(run: Config, reading: Reading | None = None) -> Any:
    """Logits of the initial model, or of a hard reading of it."""
    return build(run)(TOKENS_BT, reading or Reading("soft"))


def differ(one: Any, other: Any) -> bool:
    if jax.tree.structure(one) != jax.tree.structure(other):
        return True
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return any(a.shape != b.shape or not np.array_equal(a, b) for a, b in pairs)


@pytest.mark.parametrize(("name", "value"), MODEL.items())
def test_model_fields(run, name, value):
    assert differ(outcome(run), outcome(changed(run, model={name: value})))


def test_position_init_std(run):
    learned = changed(run, model=dataclasses.asdict(gpt2(vocab_size=257, width=32, layers=1, heads=2)))
    assert differ(outcome(learned), outcome(changed(learned, model={"position_init_std": 0.3})))


def test_attention_implementation(run):
    with pytest.raises((ValueError, NotImplementedError), match=r"implementation|pallas"):
        build(changed(run, model={"attention_implementation": "pallas"}))(TOKENS_BT, Reading("soft"))


@pytest.mark.parametrize(("name", "value"), FOCUS.items())
def test_focus_fields(run, name, value):
    assert differ(outcome(run), outcome(changed(run, attention={name: value})))


def test_temperature_sets_the_length_of_the_initial_centroids(run):
    """Initial scores stay as score_std says; a lower temperature makes them move faster."""
    dot = changed(run, attention={"scores": "dot"})
    models = (build(changed(dot, attention={"temperature": temperature})) for temperature in (0.1, 0.2))
    cold_KR, warm_KR = (model.blocks[0].attention.mixing.router.centroids_KR[...] for model in models)
    np.testing.assert_allclose(2 * cold_KR, warm_KR, rtol=1e-6)


def test_gate_slope(run):
    sigmoid = changed(run, attention={"gate": "sigmoid"})
    assert differ(outcome(sigmoid), outcome(changed(sigmoid, attention={"gate_slope": 9.0})))


def test_balance_and_its_fields(run):
    carried, none, sinkhorn = (changed(run, attention={"balance": b}) for b in ("carried", "none", "sinkhorn"))
    assert differ(outcome(none), outcome(sinkhorn))
    assert differ(outcome(sinkhorn), outcome(changed(sinkhorn, attention={"sinkhorn_rounds": 1})))
    # At the start all potentials are 0; balance_rate moves them: tests/training/test_step.py.
    assert not differ(outcome(carried), outcome(none))


def test_membership(run):
    hard = Reading("hard", 2, gated=False)
    assert differ(outcome(run, hard), outcome(changed(run, attention={"membership": "shared"}), hard))


def test_seed(run):
    assert differ(outcome(run), outcome(changed(run, seed=1)))


def test_attention_top_k_is_read_hard_where_the_evaluation_names_none(run):
    for top_k in (1, 3):
        chosen = changed(run, attention={"top_k": top_k}, evaluation={"top_k": ()})
        assert {reading.top_k for reading in readings_of(chosen)} == {None, top_k}


@pytest.mark.parametrize(("name", "value"), OPTIMIZER.items())
def test_optimizer_fields(run, name, value):
    assert differ(updates(run), updates(changed(run, optimizer={name: value})))


def updates(run: Config) -> Any:
    """Ten updates of a made-up model with made-up gradients; the run has twelve steps."""
    params = {"router": jnp.ones((2, 2)), "matrix": jnp.ones((2, 2)), "vector": jnp.ones(2)}
    optimizer = make_optimizer(run)
    state, seen = optimizer.init(params), []
    for n in range(10):
        gradients = jax.tree.map(lambda p, n=n: p * 1e-2 * (1 + n), params)
        update, state = optimizer.update(gradients, state, params)
        seen.append(update)
    return seen
