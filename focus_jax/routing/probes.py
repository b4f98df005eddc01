"""Learning whom to read from a few rows that read everything.

A router that only sees the pairs it already keeps cannot learn what it misses. So in every training sequence P rows,
the probes, attend densely, and the router learns to predict what they attend to at a distance (ours; not in arXiv
2604.03260).
"""

import jax
import jax.numpy as jnp
import numpy as np

# Below it an affinity product counts as this: a pair of tokens that are surely in different groups.
_SMALLEST = 1e-30


def probe_positions(keys_B: jax.Array, *, tokens: int, window: int, probes: int) -> jax.Array:
    """int32 (B, P): of every sequence one random position in each of P equal stretches of those that have distant
    keys; all of these where there are fewer than `probes`.

    keys_B: a random key for each sequence.
    """
    first = window + 1
    number = max(tokens - first, 0)
    probes = min(probes, number)
    # In 64 bits: probes times rows may be more than 32 hold.
    bounds_P = first + np.arange(probes + 1, dtype=np.int64) * number // max(probes, 1)

    def draw(key: jax.Array) -> jax.Array:
        return jax.random.randint(key, (probes,), bounds_P[:-1], bounds_P[1:])

    return jax.vmap(draw)(keys_B)


def router_nats(
    log_affinity_BTK: jax.Array, attention_BPS: jax.Array, positions_BP: jax.Array, *, window: int
) -> jax.Array:
    """The router's loss, summed over the probes of each sequence (B,): Σ_i −Σ_j A_ij log(a_ij / Σ_j' a_ij') over
    distant keys, where A is attention_BPS and a_ij = Σ_K affinity_i · affinity_j.

    The sum over j' matters: without it everything in one group would be the optimum.
    """
    affinity_BSK = jnp.exp(log_affinity_BTK)
    affinity_BPK = jnp.take_along_axis(affinity_BSK, positions_BP[..., None], axis=1)
    joined_BPS = jnp.einsum("bpk,bsk->bps", affinity_BPK, affinity_BSK, precision="highest")
    distant_BPS = positions_BP[..., None] - jnp.arange(affinity_BSK.shape[1]) > window
    joined_BPS = jnp.where(distant_BPS, jnp.maximum(joined_BPS, _SMALLEST), 0.0)
    total_BP1 = jnp.sum(joined_BPS, axis=-1, keepdims=True)
    log_share_BPS = jnp.log(jnp.where(distant_BPS, joined_BPS, 1.0)) - jnp.log(total_BP1)
    return -jnp.sum(jnp.where(distant_BPS, attention_BPS * log_share_BPS, 0.0), axis=(1, 2))
