"""The loss in chunks against the plain one: values, gradients, what is held."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from focus_jax.model import vocabulary_logits
from focus_jax.training.loss import token_nats, total_nats

VOCABULARY, PADDED = 50257, 50304


def plain(normed_BTD: jax.Array, matrix_DV: jax.Array, targets_BT: jax.Array) -> jax.Array:
    return jnp.sum(token_nats(vocabulary_logits(normed_BTD, matrix_DV, VOCABULARY), targets_BT))


def chunked(chunks: int):
    return partial(total_nats, vocab_size=VOCABULARY, chunks=chunks)


def arguments(tokens: int = 24) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Targets are missing unevenly; one is the last token, beside the padding."""
    first, second, third = jax.random.split(jax.random.key(0), 3)
    normed_BTD = jax.random.normal(first, (2, tokens, 16))
    matrix_DV = jax.random.normal(second, (16, PADDED))
    targets_BT = jax.random.randint(third, (2, tokens), 0, VOCABULARY).at[0, 5:11].set(-1).at[1, 0].set(VOCABULARY - 1)
    return normed_BTD, matrix_DV, targets_BT


@pytest.mark.parametrize("chunks", [1, 3, 8])
def test_chunks_change_neither_the_loss_nor_its_gradients(chunks):
    normed_BTD, matrix_DV, targets_BT = arguments()
    expected, (dnormed, dmatrix) = jax.value_and_grad(plain, (0, 1))(normed_BTD, matrix_DV, targets_BT)
    # The cotangent is not 1: gradients are made beside the loss and scaled later.
    found, pull = jax.vjp(lambda x, w: chunked(chunks)(x, w, targets_BT), normed_BTD, matrix_DV)
    found_dnormed, found_dmatrix = pull(jnp.float32(0.5))
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    np.testing.assert_allclose(2 * found_dnormed, dnormed, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(2 * found_dmatrix, dmatrix, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(chunked(chunks)(normed_BTD, matrix_DV, targets_BT), expected, rtol=1e-6)


def test_padding_and_missing_targets_get_exactly_nothing():
    normed_BTD, matrix_DV, targets_BT = arguments()
    dnormed_BTD, dmatrix_DV = jax.grad(chunked(3), (0, 1))(normed_BTD, matrix_DV, targets_BT)
    assert (dmatrix_DV[:, VOCABULARY:] == 0).all()
    assert (dnormed_BTD[0, 5:11] == 0).all()
    assert jnp.isfinite(dmatrix_DV).all()


def test_bfloat16_sums_in_float32():
    """Rounding each product costs a little; rounding the sums over chunks would cost much more."""
    normed_BTD, *others = arguments()
    exact = jax.grad(plain, 1)(normed_BTD, *others)
    rounded = jax.grad(chunked(24), 1)(normed_BTD.astype("bfloat16"), *others)
    assert rounded.dtype == jnp.float32
    assert jnp.abs(rounded - exact).max() < 0.02 * jnp.abs(exact).max()


def test_no_more_than_a_chunk_of_logits_is_held():
    shapes = jax.eval_shape(partial(arguments, tokens=512))
    logits = 2 * 512 * PADDED * 4

    def temporaries(loss) -> int:
        return jax.jit(jax.grad(loss, (0, 1))).lower(*shapes).compile().memory_analysis().temp_size_in_bytes

    assert temporaries(plain) > logits
    assert temporaries(chunked(16)) < logits / 4
