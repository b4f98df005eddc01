"""What a layer's groups look like, from the affinities of a batch."""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class GroupStatistics(NamedTuple):
    """Per sequence, so that batches can be put together before averaging."""

    load_BK: jax.Array
    """Share of the sequence's tokens whose best group it is."""
    dominance_B: jax.Array
    """Share of the largest group of the sequence."""
    entropy_B: jax.Array
    """Mean entropy of a token's affinities, nats (log K when undecided, 0 when sure)."""
    confidence_B: jax.Array
    """Mean affinity of a token's best group."""


def group_statistics(log_affinity_BTK: jax.Array) -> GroupStatistics:
    """Dominance as in arXiv 2604.03260, section 5: the share of the largest group."""
    groups = log_affinity_BTK.shape[-1]
    affinity_BTK = jnp.exp(log_affinity_BTK)
    load_BK = jnp.mean(jax.nn.one_hot(jnp.argmax(log_affinity_BTK, axis=-1), groups), axis=1)
    return GroupStatistics(
        load_BK=load_BK,
        dominance_B=jnp.max(load_BK, axis=-1),
        entropy_B=-jnp.mean(jnp.sum(affinity_BTK * jnp.maximum(log_affinity_BTK, -1e30), axis=-1), axis=-1),
        confidence_B=jnp.mean(jnp.max(affinity_BTK, axis=-1), axis=-1),
    )
