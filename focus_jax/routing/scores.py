"""How well a token fits each group.

Routing is a discrete choice in the end, so rounding here would change who attends to whom: everything is float32 at the
highest matmul precision.
"""

import jax
import jax.numpy as jnp

_SMALLEST = 1e-12
"""Added to squared lengths, so that one of 0 has a gradient."""

_TOKENS_OF_ZERO = 0.1
"""Stand before a sequence where means are taken. Without them the first token is its own mean, and a second one like it
differs from that by rounding alone, which then chooses its group; one whole token would show for too long."""


def projected(hidden_BTD: jax.Array, projection_DR: jax.Array) -> jax.Array:
    """h W_g, (B, T, R)."""
    return _matmul(hidden_BTD.astype(jnp.float32), projection_DR)


def dot_scores(projected_BTR: jax.Array, centroids_KR: jax.Array, temperature: float) -> jax.Array:
    """score_BTK = (h W_g) Cᵀ / τ (arXiv 2604.03260, section 3)."""
    return _matmul(projected_BTR, centroids_KR.T) / temperature


def cosine_scores(projected_BTR: jax.Array, centroids_KR: jax.Array, deviation: float) -> jax.Array:
    """score_BTK = σ √R cos(h_t W_g − mean over s ≤ t of h_s W_g, C): standard deviation σ over directions drawn at
    random (ours).

    What all tokens of a sequence have in common, most of a deep layer's hidden state early in training, tells no token
    from another: it is taken away, so that groups divide what is left, however little it is. The mean is over the
    tokens so far, so nothing sees later ones.
    """
    width = projected_BTR.shape[-1]
    around_BTR = projected_BTR - _mean_so_far(projected_BTR)
    return deviation * width**0.5 * _matmul(_unit(around_BTR), _unit(centroids_KR).T)


def _mean_so_far(projected_BTR: jax.Array) -> jax.Array:
    tokens_T1 = _TOKENS_OF_ZERO + jnp.arange(1, projected_BTR.shape[1] + 1)[:, None]
    return jnp.cumsum(projected_BTR, axis=1) / tokens_T1


def _unit(vectors_R: jax.Array) -> jax.Array:
    return vectors_R * jax.lax.rsqrt(jnp.sum(jnp.square(vectors_R), axis=-1, keepdims=True) + _SMALLEST)


def _matmul(x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.matmul(x, y, precision=jax.lax.Precision.HIGHEST)
