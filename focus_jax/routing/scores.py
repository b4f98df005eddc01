"""How well a token fits each group."""

import jax
import jax.numpy as jnp


def scores(hidden_BTD: jax.Array, projection_DR: jax.Array, centroids_KR: jax.Array, temperature: float) -> jax.Array:
    """score_BTK = (h W_g) Cᵀ / τ, in float32 at the highest matmul precision (arXiv 2604.03260, section 3).

    Routing is a discrete choice in the end, so rounding here would change who attends to whom.
    """
    highest = jax.lax.Precision.HIGHEST
    routed_BTR = jnp.matmul(hidden_BTD.astype(jnp.float32), projection_DR, precision=highest)
    return jnp.matmul(routed_BTR, centroids_KR.T, precision=highest) / temperature
