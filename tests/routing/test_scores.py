"""Scores: exact in float32, and cosines that neither a common part nor a length changes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from focus_jax import routing
from focus_jax.routing.balance import FEWEST_CENTRE_TOKENS


def normal(seed: int, *shape: int) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), shape)


def test_they_are_computed_in_float32_whatever_the_input():
    hidden_BTD, projection_DR, centroids_KR = (
        normal(5, 1, 8, 64).astype(jnp.bfloat16),
        normal(6, 64, 16),
        normal(7, 4, 16),
    )
    rounded = routing.dot_scores(routing.projected(hidden_BTD, projection_DR), centroids_KR, 0.1)
    expected = np.asarray(hidden_BTD, np.float64) @ np.asarray(projection_DR, np.float64)
    expected = expected @ np.asarray(centroids_KR, np.float64).T / 0.1
    assert rounded.dtype == jnp.float32
    np.testing.assert_allclose(rounded, expected, rtol=2e-4, atol=2e-2)


def test_cosines_are_those_around_the_mean_of_the_carried_centre_and_the_tokens_so_far():
    projected_BTR, centroids_KR, centre_R = normal(0, 2, 9, 16), normal(1, 5, 16), normal(2, 16)
    projected, centroids = np.asarray(projected_BTR, np.float64), np.asarray(centroids_KR, np.float64)
    found_BTK = routing.cosine_scores(projected_BTR, centroids_KR, centre_R, 3.5, 2.0)
    for token in range(9):
        mean_BR = (3.5 * np.asarray(centre_R) + projected[:, : token + 1].sum(axis=1)) / (3.5 + token + 1)
        around_BR = projected[:, token] - mean_BR
        lengths_BK = np.linalg.norm(around_BR, axis=-1)[:, None] * np.linalg.norm(centroids, axis=-1)
        np.testing.assert_allclose(found_BTK[:, token], 2.0 * 4 * around_BR @ centroids.T / lengths_BK, atol=1e-5)


@pytest.mark.parametrize("centre_tokens", [0.1, 1e6])
def test_what_tokens_share_and_how_little_they_differ_change_no_cosine(centre_tokens):
    """A deep layer early in training: one common part, and differences a thousand times smaller."""
    different_BTR, common_R, centroids_KR = normal(0, 1, 4000, 16), 30 * normal(1, 16), normal(2, 4, 16)
    alike_BTR = common_R + 3e-2 * different_BTR
    found_BTK = routing.cosine_scores(alike_BTR, centroids_KR, common_R, centre_tokens, 1.0)
    expected_BTK = routing.cosine_scores(different_BTR, centroids_KR, jnp.zeros(16), centre_tokens, 1.0)
    np.testing.assert_allclose(found_BTK, expected_BTK, atol=2e-2)
    assert abs(np.std(found_BTK) - 1) < 0.1
    # Of dot scores all have the same best group.
    assert len(np.unique(jnp.argmax(routing.dot_scores(alike_BTR, centroids_KR, 0.1), axis=-1))) == 1


def test_a_centre_that_lags_behind_hardly_matters_where_it_counts_as_little():
    """Else the step by which the tokens moved on would be all that the cosines see."""
    different_BTR, moved_R, centroids_KR = normal(0, 1, 4000, 16), 30 * normal(1, 16), normal(2, 4, 16)
    largest = {}
    for centre_tokens in (0.1, 1e6):
        score_BTK = routing.cosine_scores(different_BTR + moved_R, centroids_KR, jnp.zeros(16), centre_tokens, 1.0)
        largest[centre_tokens] = np.bincount(np.argmax(score_BTK[0], axis=-1)).max() / 4000
    assert largest[0.1] < 0.5
    assert largest[1e6] == 1.0


def test_no_cosine_depends_on_a_later_token():
    projected_BTR, centroids_KR, centre_R = normal(0, 1, 40, 16), normal(1, 4, 16), normal(3, 16)
    before_BTK = routing.cosine_scores(projected_BTR, centroids_KR, centre_R, 2.0, 1.0)
    changed_BTR = projected_BTR.at[:, 23:].set(normal(2, 1, 17, 16))
    after_BTK = routing.cosine_scores(changed_BTR, centroids_KR, centre_R, 2.0, 1.0)
    np.testing.assert_array_equal(before_BTK[:, :23], after_BTK[:, :23])
    assert (before_BTK[:, 23:] != after_BTK[:, 23:]).all()


def test_rounding_chooses_no_group():
    """Of tokens that are all alike, as the first ones of a text may be."""
    alike_BTR = jnp.broadcast_to(normal(0, 16), (1, 40, 16))
    rounded_BTR = alike_BTR + 1e-7 * normal(1, 1, 40, 16)
    found_BTK, expected_BTK = (
        routing.cosine_scores(x_BTR, normal(2, 4, 16), jnp.zeros(16), FEWEST_CENTRE_TOKENS, 1.0)
        for x_BTR in (rounded_BTR, alike_BTR)
    )
    np.testing.assert_allclose(found_BTK, expected_BTK, atol=1e-3)


def test_a_token_without_length_has_finite_scores_and_gradients():
    def total(projected_BTR: jax.Array) -> jax.Array:
        return jnp.sum(routing.cosine_scores(projected_BTR, normal(1, 4, 16), jnp.zeros(16), 1.0, 1.0))

    value, gradient_BTR = jax.value_and_grad(total)(jnp.zeros((1, 3, 16)))
    assert np.isfinite(value)
    assert np.isfinite(gradient_BTR).all()
