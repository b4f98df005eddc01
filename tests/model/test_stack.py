"""Blocks as a loop and computed again in the backward pass: memory changes, results do not."""

import functools
from typing import Any

import jax
import numpy as np
import pytest

from focus_jax.config import Config
from focus_jax.model import as_trained
from focus_jax.training.optimizer import make_optimizer
from focus_jax.training.state import graph_of, initial_state
from focus_jax.training.step import make_train_step
from tests.changes import changed

slow = pytest.mark.slow


@pytest.fixture
def run(run: Config) -> Config:
    """A dense layer, then two Focus layers that can be a loop; equal from test to test."""
    return changed(
        run,
        run="run",
        data={"files": (), "store": "store"},
        model={"layers": 3, "attention_implementation": "auto"},
        attention={"dense_layers": (0,), "router": "distill", "probes": 6},
    )


@functools.cache
def compiled_step(run: Config) -> Any:
    state = jax.eval_shape(lambda: initial_state(run, make_optimizer(run)))
    tokens = jax.ShapeDtypeStruct((run.training.batch_size, run.training.sequence_length), "int32")
    step = make_train_step(run, graph_of(run), make_optimizer(run), as_trained(run.attention, 0))
    return jax.jit(step).lower(state, tokens, tokens).compile()


def temporaries(run: Config, **training: Any) -> int:
    return compiled_step(changed(run, training=training)).memory_analysis().temp_size_in_bytes


@functools.cache
def outcome(run: Config) -> dict[str, jax.Array]:
    """The first moments after one step by the names of their parameters, and the loss."""
    tokens_BT = jax.random.randint(jax.random.key(0), (4, 49), 0, 257)
    state, metrics = compiled_step(run)(initial_state(run, make_optimizer(run)), tokens_BT[:, :-1], tokens_BT[:, 1:])
    moments = jax.tree.leaves_with_path(state.opt_state[2].mu)
    return {jax.tree_util.keystr(path): moment for path, moment in moments} | {"loss": metrics.loss}


@slow
@pytest.mark.parametrize(
    ("remat", "scan_layers", "training"),
    [
        ("none", True, "hard"),
        ("dots", True, "hard"),
        ("attention", True, "hard"),
        ("full", False, "hard"),
        ("attention", True, "soft"),
        ("full", True, "soft"),
    ],
)
def test_results_stay_and_so_do_the_names_of_parameters(run, remat, scan_layers, training):
    run = changed(run, attention={"training": training})
    found = outcome(changed(run, training={"remat": remat, "scan_layers": scan_layers}))
    expected = outcome(run)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=2e-3, atol=2e-6, err_msg=name)


def test_the_router_learns_the_same_from_its_probes(run):
    """Its target is an attention that is computed again in the backward pass."""
    hard = changed(run, model={"attention_implementation": "reference"}, attention={"training": "hard"})
    found, expected = outcome(changed(hard, training={"remat": "full", "scan_layers": True})), outcome(hard)
    routers = [name for name in expected if "router" in name]
    assert len(routers) == 4
    for name in routers:
        np.testing.assert_allclose(found[name], expected[name], rtol=2e-3, atol=2e-6, err_msg=name)


@slow
def test_each_policy_takes_less_memory_than_the_one_before(run):
    run = changed(
        run,
        model={"width": 64, "mlp_width": 256},
        attention={"dense_layers": ()},
        training={"sequence_length": 256},
    )
    sizes = [temporaries(run, remat=remat, scan_layers=True) for remat in ("none", "dots", "attention", "full")]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] < 0.7 * sizes[0]
    # As a loop only one layer's work is held at a time.
    assert temporaries(run, remat="full", scan_layers=False) > sizes[-1]
    # Parts of a batch and of the loss, and bfloat16, take less each.
    for name, fit in {"microbatches": 4, "loss_chunks": 8}.items():
        assert temporaries(run, **{name: fit}) < temporaries(run)
    assert temporaries(changed(run, model={"compute_dtype": "bfloat16"})) < temporaries(run)
