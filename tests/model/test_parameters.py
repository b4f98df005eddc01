"""Parameter counts against the published ones, and the twins' initial values."""

import dataclasses

import jax
import numpy as np
import pytest
from flax import nnx

from focus_jax.config import Dense, Focus, dense_twin, gpt2, llama
from focus_jax.config_loading import differences
from focus_jax.model import parameter_count
from focus_jax.model.router import Router
from focus_jax.training.optimizer import make_optimizer
from focus_jax.training.state import initial_state
from tests.changes import changed

GPT2 = gpt2(vocab_size=50257, width=768, layers=12, heads=12)
LLAMA_7B = llama(vocab_size=32000, width=4096, layers=32, heads=32, kv_heads=32, mlp_width=11008)
MISTRAL_7B = llama(vocab_size=32000, width=4096, layers=32, heads=32, kv_heads=8, mlp_width=14336)


@pytest.mark.parametrize(
    ("model", "tokens", "published"),
    [(GPT2, 1024, 124_439_808), (LLAMA_7B, 4096, 6_738_415_616), (MISTRAL_7B, 4096, 7_241_732_096)],
)
def test_published_parameter_counts(run, model, tokens, published):
    run = changed(
        run,
        model=dataclasses.asdict(dataclasses.replace(model, vocab_multiple=1)),
        training={"sequence_length": tokens},
        attention=Dense(),
    )
    assert parameter_count(run) == published


def test_focus_adds_its_routers_and_nothing_else(run):
    run = changed(run, model=dataclasses.asdict(GPT2), attention=Focus(groups=4, top_k=1, window=128))
    assert parameter_count(run) - parameter_count(dense_twin(run)) == 12 * (768 * 16 + 4 * 16) == 148_224


def test_the_twin_differs_by_the_attention_field_alone(run):
    assert [name for name, _, _ in differences(run, dense_twin(run))] == ["attention"]


def test_twins_share_every_initial_value_outside_the_router(run):
    focus, dense = (initial_state(r, make_optimizer(r)).params for r in (run, dense_twin(run)))
    of_focus = dict(jax.tree.leaves_with_path(focus))
    assert len(of_focus) == len(jax.tree.leaves(dense)) + 2 * run.model.layers
    for path, value in jax.tree.leaves_with_path(dense):
        np.testing.assert_array_equal(value, of_focus[path])


def test_dense_layers_have_no_router(run):
    one_dense = changed(run, attention={"dense_layers": (1,)})
    assert parameter_count(run) - parameter_count(one_dense) == 32 * 8 + 4 * 8


def test_initial_scores_have_the_wanted_deviation(run):
    """A normed token's scores start with standard deviation score_std, whatever width, temperature and R."""
    for scores, std, tau, width in (("cosine", 1.5, 0.1, 64), ("dot", 1.0, 0.1, 64), ("dot", 2.0, 0.5, 256)):
        focus = Focus(groups=64, top_k=1, window=1, scores=scores, score_std=std, temperature=tau)
        router = Router(focus, width, nnx.Rngs(router=0))
        token_BTD = jax.random.normal(jax.random.key(1), (1, 2000, width))
        log_affinity_BTK = router(token_BTD).log_affinity_BTK
        assert np.std(log_affinity_BTK - log_affinity_BTK.mean(-1, keepdims=True)) == pytest.approx(std, rel=0.2)


def test_initial_values_are_the_published_ones(run):
    model = gpt2(vocab_size=2000, width=128, layers=8, heads=4)
    params = initial_state(
        run := changed(run, model=dataclasses.asdict(model), training={"sequence_length": 512}), make_optimizer(run)
    ).params
    block = params["blocks"][0]
    assert np.std(params["embedding"]["embedding"]) == pytest.approx(0.02, rel=0.02)
    assert np.std(params["position_embedding"]["embedding"]) == pytest.approx(0.01, rel=0.02)
    assert np.std(block["mlp"]["up"]["kernel"]) == pytest.approx(0.02, rel=0.02)
    assert np.std(block["mlp"]["down"]["kernel"]) == pytest.approx(0.02 / 16**0.5, rel=0.02)
    assert np.std(block["attention"]["output"]["kernel"]) == pytest.approx(0.02 / 16**0.5, rel=0.02)
    assert not block["mlp"]["up"]["bias"].any()
