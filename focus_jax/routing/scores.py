"""How well a token fits each group.

Routing is a discrete choice in the end, so rounding here would change who attends to whom: everything is float32 at the
highest matmul precision.
"""

import jax
import jax.numpy as jnp

_SMALLEST = 1e-12
"""Added to squared lengths, so that one of 0 has a gradient."""


def projected(hidden_BTD: jax.Array, projection_DR: jax.Array) -> jax.Array:
    """h W_g, (B, T, R)."""
    return _matmul(hidden_BTD.astype(jnp.float32), projection_DR)


def dot_scores(projected_BTR: jax.Array, centroids_KR: jax.Array, temperature: float) -> jax.Array:
    """score_BTK = (h W_g) Cᵀ / τ (arXiv 2604.03260, section 3)."""
    return _matmul(projected_BTR, centroids_KR.T) / temperature


def cosine_scores(
    projected_BTR: jax.Array,
    centroids_KR: jax.Array,
    centre_R: jax.Array,
    centre_tokens: jax.Array | float,
    deviation: float,
) -> jax.Array:
    """score_BTK = σ √R cos(h_t W_g − centre_t, C): standard deviation σ over directions drawn at random (ours).

    What all tokens have in common, most of a deep layer's hidden state early in training, tells no token from another:
    it is taken away, so that groups divide what is left, however little it is. centre_t is the mean of the sequence's
    tokens up to t and of the carried centre, which counts as so many tokens (balance.next_centre); nothing sees later
    tokens.
    """
    width = projected_BTR.shape[-1]
    around_BTR = projected_BTR - _mean_so_far(projected_BTR, centre_R, centre_tokens)
    return deviation * width**0.5 * _matmul(_unit(around_BTR), _unit(centroids_KR).T)


def _mean_so_far(projected_BTR: jax.Array, centre_R: jax.Array, centre_tokens: jax.Array | float) -> jax.Array:
    tokens_T1 = jnp.arange(1, projected_BTR.shape[1] + 1)[:, None]
    # Summed around the carried centre: most of what tokens have in common is not there to be rounded.
    sum_BTR = jnp.cumsum(projected_BTR - centre_R, axis=1)
    return centre_R + sum_BTR / (centre_tokens + tokens_T1)


def _unit(vectors_R: jax.Array) -> jax.Array:
    return vectors_R * jax.lax.rsqrt(jnp.sum(jnp.square(vectors_R), axis=-1, keepdims=True) + _SMALLEST)


def _matmul(x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.matmul(x, y, precision=jax.lax.Precision.HIGHEST)
