"""Scores: exact in float32, and cosines that neither a common part nor a length changes."""

import jax
import jax.numpy as jnp
import numpy as np

from focus_jax import routing


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


def test_cosines_are_those_around_the_mean_of_the_tokens_so_far():
    projected_BTR, centroids_KR = normal(0, 2, 9, 16), normal(1, 5, 16)
    projected, centroids = np.asarray(projected_BTR, np.float64), np.asarray(centroids_KR, np.float64)
    found_BTK = routing.cosine_scores(projected_BTR, centroids_KR, 2.0)
    for token in range(9):
        around_BR = projected[:, token] - projected[:, : token + 1].sum(axis=1) / (token + 1.1)
        lengths_BK = np.linalg.norm(around_BR, axis=-1)[:, None] * np.linalg.norm(centroids, axis=-1)
        np.testing.assert_allclose(found_BTK[:, token], 2.0 * 4 * around_BR @ centroids.T / lengths_BK, atol=1e-5)


def test_what_tokens_share_and_how_little_they_differ_hardly_change_a_cosine():
    """A deep layer early in training: one common part, and differences a thousand times smaller."""
    different_BTR, common_R, centroids_KR = normal(0, 1, 4000, 16), 30 * normal(1, 16), normal(2, 4, 16)
    alike_BTR = common_R + 3e-2 * different_BTR
    found_BTK = routing.cosine_scores(alike_BTR, centroids_KR, 1.0)
    expected_BTK = routing.cosine_scores(different_BTR, centroids_KR, 1.0)
    # The zero before the sequence shows in its first tokens.
    np.testing.assert_allclose(found_BTK[:, 2000:], expected_BTK[:, 2000:], atol=0.2)
    assert abs(np.std(found_BTK) - 1) < 0.1
    # Of dot scores all have the same best group.
    assert len(np.unique(jnp.argmax(routing.dot_scores(alike_BTR, centroids_KR, 0.1), axis=-1))) == 1


def test_rounding_chooses_no_group():
    """Of tokens that are all alike, as the first ones of a text may be."""
    alike_BTR = jnp.broadcast_to(normal(0, 16), (1, 40, 16))
    rounded_BTR = alike_BTR + 1e-7 * normal(1, 1, 40, 16)
    centroids_KR = normal(2, 4, 16)
    np.testing.assert_allclose(
        routing.cosine_scores(rounded_BTR, centroids_KR, 1.0),
        routing.cosine_scores(alike_BTR, centroids_KR, 1.0),
        atol=1e-3,
    )


def test_no_cosine_depends_on_a_later_token():
    projected_BTR, centroids_KR = normal(0, 1, 40, 16), normal(1, 4, 16)
    before_BTK = routing.cosine_scores(projected_BTR, centroids_KR, 1.0)
    after_BTK = routing.cosine_scores(projected_BTR.at[:, 23:].set(normal(2, 1, 17, 16)), centroids_KR, 1.0)
    np.testing.assert_array_equal(before_BTK[:, :23], after_BTK[:, :23])
    assert (before_BTK[:, 23:] != after_BTK[:, 23:]).all()


def test_a_token_without_length_has_finite_scores_and_gradients():
    def total(projected_BTR: jax.Array) -> jax.Array:
        return jnp.sum(routing.cosine_scores(projected_BTR, normal(1, 4, 16), 1.0))

    value, gradient_BTR = jax.value_and_grad(total)(jnp.zeros((1, 3, 16)))
    assert np.isfinite(value)
    assert np.isfinite(gradient_BTR).all()
