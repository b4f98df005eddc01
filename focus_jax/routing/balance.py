"""From scores to affinities, and what keeps groups in use.

The result of Sinkhorn is softmax(score + v) for one potential v per group; only v depends on other tokens. `carried`
keeps v between optimizer steps, so that a token's affinities never depend on later tokens. `sinkhorn` is the published
form, which finds v from the whole sequence and so sees the future.
"""

from typing import Literal

import jax
import jax.numpy as jnp

Balance = Literal["carried", "sinkhorn", "none"]

# A group's share counts as at least this, so that an empty group is pulled back at a bounded rate.
SHARE_FLOOR = 1e-3

# Weight of the newest optimizer step in the carried mean of the tokens.
CENTRE_RATE = 0.3

# Tokens that the carried mean counts as. Fewer, and the first token of a sequence would be its own mean, a second one
# like it would differ from that by rounding alone, and rounding would choose its group. More, and what only the tokens
# of one sequence share would put most of them into one group.
FEWEST_CENTRE_TOKENS, MOST_CENTRE_TOKENS = 0.1, 32.0


def log_affinities(
    score_BTK: jax.Array, potential_K: jax.Array, *, balance: Balance, sinkhorn_rounds: int
) -> jax.Array:
    """log affinity_BTK in float32; each token's affinities sum to 1 (arXiv 2604.03260, section 3, for `sinkhorn`)."""
    if balance == "carried":
        return jax.nn.log_softmax(score_BTK + potential_K, axis=-1)
    if balance == "none":
        return jax.nn.log_softmax(score_BTK, axis=-1)
    return _sinkhorn(score_BTK, sinkhorn_rounds)


def next_potential(potential_K: jax.Array, share_K: jax.Array, rate: jax.Array | float) -> jax.Array:
    """One step of the carried potentials: v − η·log(K·max(share, ε)), centred.

    share_K: part of all valid tokens of the optimizer step that each group took, at the old potential; sums to 1.
    """
    groups = potential_K.shape[-1]
    moved_K = potential_K - rate * jnp.log(groups * jnp.maximum(share_K, SHARE_FLOOR))
    return moved_K - jnp.mean(moved_K, axis=-1, keepdims=True)


def next_centre(centre_R: jax.Array, offset_R: jax.Array, squared_offset: jax.Array) -> tuple[jax.Array, jax.Array]:
    """One step of the carried mean of the projected tokens, and the tokens that it then counts as.

    The mean of n tokens misses the mean of all by σ²/n, squared; so a carried mean that missed this step's by δ is
    worth σ²/δ² tokens. Early in training, where tokens move further in a step than they lie apart, that is less than
    one, and a sequence is compared with its own mean.

    offset_R, squared_offset: means over the optimizer step's tokens of x − centre and of |x − centre|².
    """
    missed = jnp.sum(jnp.square(offset_R))
    worth = (squared_offset - missed) / jnp.maximum(missed, 1e-30)
    return centre_R + CENTRE_RATE * offset_R, jnp.clip(worth, FEWEST_CENTRE_TOKENS, MOST_CENTRE_TOKENS)


def _sinkhorn(score_BTK: jax.Array, rounds: int) -> jax.Array:
    """Divides by the sum over the tokens of the sequence, then by the sum over groups, in the log domain."""

    def one_round(_: int, log_BTK: jax.Array) -> jax.Array:
        log_BTK = jax.nn.log_softmax(log_BTK, axis=-2)
        return jax.nn.log_softmax(log_BTK, axis=-1)

    return jax.lax.fori_loop(0, rounds, one_round, score_BTK)
