"""Probe positions, and the loss that teaches the router."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from focus_jax.routing import probe_positions, router_nats

KEYS_B = jax.random.split(jax.random.key(0), 50)


@pytest.mark.parametrize(("tokens", "window", "probes"), [(100, 10, 8), (100, 10, 89), (100, 98, 4), (20, 3, 64)])
def test_positions_are_different_rows_with_distant_keys(tokens, window, probes):
    positions_BP = np.asarray(probe_positions(KEYS_B, tokens=tokens, window=window, probes=probes))
    assert positions_BP.shape == (50, min(probes, tokens - window - 1))
    assert (np.diff(positions_BP, axis=1) > 0).all()
    assert positions_BP.min() >= window + 1
    assert positions_BP.max() < tokens


def test_positions_are_right_where_probes_times_rows_leave_32_bits():
    positions_P = np.asarray(probe_positions(KEYS_B[:1], tokens=2**20, window=128, probes=4096))[0]
    assert (np.diff(positions_P) > 0).all()
    assert (positions_P[0] > 128, positions_P[-1] < 2**20) == (True, True)


def test_every_row_with_distant_keys_is_drawn_as_often():
    positions_BP = probe_positions(jax.random.split(jax.random.key(1), 4000), tokens=37, window=4, probes=8)
    counts = np.bincount(np.ravel(positions_BP), minlength=37)
    assert (counts[:5] == 0).all()
    np.testing.assert_allclose(counts[5:], 1000, atol=120)


@pytest.mark.parametrize(("tokens", "window"), [(1, 0), (10, 9), (10, 50)])
def test_without_distant_keys_there_are_no_probes(tokens, window):
    assert probe_positions(KEYS_B, tokens=tokens, window=window, probes=4).shape == (50, 0)


def example() -> tuple[jax.Array, jax.Array]:
    """Attention of three probe rows to the earlier tokens of their own kind; the kind of token t is t mod 4."""
    positions_BP = jnp.array([[33, 50, 63]])
    kind_S = jnp.arange(64) % 4
    same_BPS = (kind_S == kind_S[positions_BP][..., None]) & (jnp.arange(64) <= positions_BP[..., None])
    return positions_BP, same_BPS / same_BPS.sum(axis=-1, keepdims=True)


def loss(log_affinity_BTK: jax.Array, window: int = 5) -> jax.Array:
    positions_BP, attention_BPS = example()
    return router_nats(log_affinity_BTK, attention_BPS, positions_BP, window=window).sum()


def test_loss_is_the_formula():
    log_affinity_BTK = jax.nn.log_softmax(jax.random.normal(jax.random.key(0), (1, 64, 4)))
    positions_BP, attention_BPS = example()
    affinity_TK = np.exp(np.asarray(log_affinity_BTK[0], np.float64))
    expected = 0.0
    for p, i in enumerate(positions_BP[0].tolist()):
        distant = np.arange(i - 5)
        a_j = affinity_TK[distant] @ affinity_TK[i]
        expected -= np.sum(np.asarray(attention_BPS)[0, p, distant] * np.log(a_j / a_j.sum()))
    np.testing.assert_allclose(loss(log_affinity_BTK), expected, rtol=1e-5)


def test_everything_in_one_group_is_not_an_optimum():
    """It is as bad as knowing nothing; the right groups are better, and descent finds them from there."""
    one_group = jax.nn.log_softmax(jnp.tile(jnp.array([30.0, 0, 0, 0]), (1, 64, 1)))
    undecided = jax.nn.log_softmax(jnp.zeros((1, 64, 4)))
    right = jax.nn.log_softmax(30.0 * jax.nn.one_hot(jnp.arange(64) % 4, 4))[None]
    np.testing.assert_allclose(loss(one_group), loss(undecided), rtol=1e-5)
    assert loss(right) < loss(one_group) - 2.0
    of_scores = jax.jit(jax.value_and_grad(lambda scores: loss(jax.nn.log_softmax(scores))))
    scores_BTK = jnp.array([1.0, 0, 0, 0]) + 0.1 * jax.random.normal(jax.random.key(0), (1, 64, 4))
    for _ in range(300):
        scores_BTK -= of_scores(scores_BTK)[1]
    assert of_scores(scores_BTK)[0] < loss(one_group) - 1.0


def test_gradient_is_finite_where_tokens_are_surely_apart():
    scores_BTK = 1e4 * jax.random.normal(jax.random.key(0), (1, 64, 4))
    gradient_BTK = jax.grad(lambda s: loss(jax.nn.log_softmax(s)))(scores_BTK)
    assert jnp.isfinite(gradient_BTK).all()
    assert jnp.isfinite(loss(jax.nn.log_softmax(scores_BTK)))


def test_only_distant_keys_count():
    log_affinity_BTK = jax.nn.log_softmax(jax.random.normal(jax.random.key(0), (1, 64, 4)))
    gradient_BTK = jax.grad(lambda a: loss(a, window=20))(log_affinity_BTK)
    positions_BP, _ = example()
    touched = {*positions_BP[0].tolist(), *range(63 - 20)}
    assert {int(t) for t in jnp.flatnonzero(jnp.any(gradient_BTK[0] != 0, axis=-1))} == touched
