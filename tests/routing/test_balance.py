import jax
import jax.numpy as jnp
import numpy as np
import pytest

from focus_jax import routing


def scores(seed: int, *shape: int, std: float = 1.0) -> jax.Array:
    return std * jax.random.normal(jax.random.key(seed), shape)


def test_sinkhorn_is_the_published_iteration():
    score_BTK = scores(0, 2, 50, 4)
    expected_BTK = np.exp(np.asarray(score_BTK, np.float64))
    for _ in range(10):
        expected_BTK /= expected_BTK.sum(axis=1, keepdims=True)
        expected_BTK /= expected_BTK.sum(axis=2, keepdims=True)
    found_BTK = routing.log_affinities(score_BTK, jnp.zeros(4), balance="sinkhorn", sinkhorn_rounds=10)
    np.testing.assert_allclose(np.exp(found_BTK), expected_BTK, rtol=1e-5)


def test_sinkhorn_survives_scores_that_overflow_the_plain_domain():
    found_BTK = routing.log_affinities(
        scores(0, 1, 50, 4, std=300), jnp.zeros(4), balance="sinkhorn", sinkhorn_rounds=10
    )
    assert np.isfinite(np.exp(found_BTK)).all()


def test_one_potential_reproduces_a_converged_sinkhorn():
    """method.md: Sinkhorn's result is softmax(score + v)."""
    score_BTK = scores(1, 1, 200, 4)
    balanced_BTK = routing.log_affinities(score_BTK, jnp.zeros(4), balance="sinkhorn", sinkhorn_rounds=200)
    potential_K = jnp.mean(balanced_BTK - score_BTK - (balanced_BTK - score_BTK)[..., :1], axis=(0, 1))
    carried_BTK = routing.log_affinities(score_BTK, potential_K, balance="carried", sinkhorn_rounds=1)
    np.testing.assert_allclose(carried_BTK, balanced_BTK, atol=1e-4)


def test_carried_potentials_balance_a_biased_router():
    score_BTK = scores(2, 1, 4000, 4) + jnp.array([3.0, 0.0, 0.0, -3.0])
    potential_K = jnp.zeros(4)
    for _ in range(300):
        log_affinity_BTK = routing.log_affinities(score_BTK, potential_K, balance="carried", sinkhorn_rounds=1)
        potential_K = routing.next_potential(potential_K, jnp.exp(log_affinity_BTK).mean(axis=(0, 1)), 0.1)
    np.testing.assert_allclose(jnp.exp(log_affinity_BTK).mean(axis=(0, 1)), 0.25, atol=0.01)
    np.testing.assert_allclose(potential_K.sum(), 0, atol=1e-5)


def test_an_empty_group_is_pulled_back_at_a_bounded_rate():
    moved_K = routing.next_potential(jnp.zeros(4), jnp.array([0.0, 0.5, 0.25, 0.25]), 1.0)
    assert np.isfinite(moved_K).all()
    assert moved_K[0] == moved_K.max()


@pytest.mark.parametrize("balance", ["carried", "sinkhorn", "none"])
def test_affinities_sum_to_one(balance):
    found_BTK = routing.log_affinities(scores(3, 2, 9, 5), jnp.arange(5.0), balance=balance, sinkhorn_rounds=3)
    np.testing.assert_allclose(jnp.exp(found_BTK).sum(-1), 1, rtol=1e-5)


def test_without_balance_potentials_do_nothing():
    score_BTK = scores(4, 1, 9, 3)
    with_BTK, without_BTK = (
        routing.log_affinities(score_BTK, v_K, balance="none", sinkhorn_rounds=1)
        for v_K in (jnp.arange(3.0), jnp.zeros(3))
    )
    np.testing.assert_array_equal(with_BTK, without_BTK)


def test_a_centre_counts_as_the_tokens_whose_mean_misses_by_as_much():
    """Means of n tokens miss the mean of all by σ²/n, squared."""
    tokens_NR = 5 + jax.random.normal(jax.random.key(0), (200_000, 16))
    for few in (4, 16):
        counted = []
        for start in range(0, 40 * few, few):
            offset_NR = tokens_NR - tokens_NR[start : start + few].mean(axis=0)
            squared = jnp.sum(jnp.square(offset_NR), axis=-1).mean()
            counted.append(float(routing.next_centre(jnp.zeros(16), offset_NR.mean(axis=0), squared)[1]))
        assert np.median(counted) == pytest.approx(few, rel=0.25)
    # Where the tokens have moved on by far, as good as nothing; where they stand still, all there is.
    assert routing.next_centre(jnp.zeros(16), jnp.full(16, 100.0), 16 * 100.0**2 + 1)[1] == pytest.approx(0.1)
    assert routing.next_centre(jnp.zeros(16), jnp.zeros(16), 16.0)[1] == pytest.approx(32)
