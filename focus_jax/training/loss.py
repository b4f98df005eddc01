"""Next-token cross-entropy in nats. B batch · T tokens · V vocabulary."""

import jax
import jax.numpy as jnp

NO_TARGET = -1


def token_nats(logits_BTV: jax.Array, targets_BT: jax.Array) -> jax.Array:
    """−log p(target) in float32, exactly 0 where there is no target (−1)."""
    has_target_BT = targets_BT != NO_TARGET
    target_BT1 = jnp.where(has_target_BT, targets_BT, 0)[..., None]
    target_logit_BT = jnp.take_along_axis(logits_BTV, target_BT1, axis=-1)[..., 0]
    nats_BT = jax.nn.logsumexp(logits_BTV, axis=-1) - target_logit_BT
    return jnp.where(has_target_BT, nats_BT, 0.0)
