"""Next-token cross-entropy in nats, float32.

B batch · T tokens · D width · V padded vocabulary · N chunks of tokens.
"""

import math
from functools import partial

import jax
import jax.numpy as jnp

from focus_jax import config
from focus_jax.model import Decoder, vocabulary_logits

NO_TARGET = -1


def token_nats(logits_BTV: jax.Array, targets_BT: jax.Array) -> jax.Array:
    """−log p(target) in float32, exactly 0 where there is no target (−1)."""
    has_target_BT = targets_BT != NO_TARGET
    target_BT1 = jnp.where(has_target_BT, targets_BT, 0)[..., None]
    target_logit_BT = jnp.take_along_axis(logits_BTV, target_BT1, axis=-1)[..., 0]
    nats_BT = jax.nn.logsumexp(logits_BTV, axis=-1) - target_logit_BT
    return jnp.where(has_target_BT, nats_BT, 0.0)


def chunked_nats(run: config.Config, model: Decoder, normed_BTD: jax.Array, targets_BT: jax.Array) -> jax.Array:
    """`token_nats` of the logits of a model's features, for evaluation. At other lengths than that of training there
    are as many of training.loss_chunks as divide it."""
    chunks = math.gcd(run.training.loss_chunks, targets_BT.shape[1])
    return _chunked_nats(normed_BTD, model.output_matrix_DV(), targets_BT, run.model.vocab_size, chunks)


def loss_sum(run: config.Config, model: Decoder, normed_BTD: jax.Array, targets_BT: jax.Array) -> jax.Array:
    """Σ nats over all targets, for training."""
    matrix_DV = model.output_matrix_DV()
    return total_nats(normed_BTD, matrix_DV, targets_BT, run.model.vocab_size, run.training.loss_chunks)


def _chunked_nats(
    normed_BTD: jax.Array, matrix_DV: jax.Array, targets_BT: jax.Array, vocab_size: int, chunks: int
) -> jax.Array:
    def of_chunk(chunk: tuple[jax.Array, jax.Array]) -> jax.Array:
        return token_nats(vocabulary_logits(chunk[0], matrix_DV, vocab_size), chunk[1])

    nats_NBT = jax.lax.map(of_chunk, (_in_chunks(normed_BTD, chunks), _in_chunks(targets_BT, chunks)))
    return nats_NBT.swapaxes(0, 1).reshape(targets_BT.shape)


@partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def total_nats(
    normed_BTD: jax.Array, matrix_DV: jax.Array, targets_BT: jax.Array, vocab_size: int, chunks: int
) -> jax.Array:
    """Σ nats over all targets. Where it is differentiated, the gradients of a chunk are computed beside its loss, so
    that its logits need neither be kept nor computed again; they are summed in float32."""
    return jnp.sum(_chunked_nats(normed_BTD, matrix_DV, targets_BT, vocab_size, chunks))


def _forward(
    normed_BTD: jax.Array, matrix_DV: jax.Array, targets_BT: jax.Array, vocab_size: int, chunks: int
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    def add(sums: tuple[jax.Array, jax.Array], chunk: tuple[jax.Array, jax.Array]):
        nats, dmatrix_DV = sums
        x_BTD, chunk_targets_BT = chunk
        logits_BTV = vocabulary_logits(x_BTD, matrix_DV, vocab_size)
        nats_BT = token_nats(logits_BTV, chunk_targets_BT)
        dlogits_BTV = _logits_gradient(logits_BTV, chunk_targets_BT).astype(x_BTD.dtype)
        dx_BTD = jnp.matmul(dlogits_BTV, matrix_DV.T.astype(x_BTD.dtype))
        dmatrix_DV += jnp.einsum("btd,btv->dv", x_BTD, dlogits_BTV, preferred_element_type=jnp.float32)
        return (nats + jnp.sum(nats_BT), dmatrix_DV), dx_BTD

    nothing = jnp.zeros(()), jnp.zeros_like(matrix_DV)
    parts = _in_chunks(normed_BTD, chunks), _in_chunks(targets_BT, chunks)
    (nats, dmatrix_DV), dx_NBTD = jax.lax.scan(add, nothing, parts)
    return nats, (dx_NBTD.swapaxes(0, 1).reshape(normed_BTD.shape), dmatrix_DV)


def _backward(
    vocab_size: int, chunks: int, gradients: tuple[jax.Array, jax.Array], cotangent: jax.Array
) -> tuple[jax.Array, jax.Array, None]:
    dnormed_BTD, dmatrix_DV = gradients
    return (cotangent * dnormed_BTD).astype(dnormed_BTD.dtype), cotangent * dmatrix_DV, None


total_nats.defvjp(_forward, _backward)


def _logits_gradient(logits_BTV: jax.Array, targets_BT: jax.Array) -> jax.Array:
    """Of each token's nats: the probabilities, less one at the target; 0 where there is no target."""
    is_target_BTV = jnp.arange(logits_BTV.shape[-1]) == targets_BT[..., None]
    gradient_BTV = jax.nn.softmax(logits_BTV, axis=-1) - is_target_BTV
    return jnp.where((targets_BT != NO_TARGET)[..., None], gradient_BTV, 0.0)


def _in_chunks(x_BT_: jax.Array, chunks: int) -> jax.Array:
    """Stretches of the sequences, so that devices that share the batch share every chunk."""
    return x_BT_.reshape(x_BT_.shape[0], chunks, -1, *x_BT_.shape[2:]).swapaxes(0, 1)
