"""Probe rows against dense attention and the float32 definition."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from focus_jax.ops import dense_attention, probe_attention
from focus_jax.ops.blockwise import probes

B, T, H, J, C = 2, 100, 4, 2, 16


def arrays(dtype: str = "float32") -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """With the last positions unread: what they hold must not matter."""
    rng = np.random.default_rng(0)
    q_BTHC, k_BSJC, v_BSJC = (rng.normal(size=(B, T, heads, C)) for heads in (H, J, J))
    k_BSJC[:, 90:] = v_BSJC[:, 90:] = np.nan
    positions_BP = np.stack([rng.permutation(90)[:7] for _ in range(B)])
    return *(jnp.asarray(x, dtype) for x in (q_BTHC, k_BSJC, v_BSJC)), jnp.asarray(positions_BP, jnp.int32)


def rows(dense_BTHC: jax.Array, positions_BP: jax.Array) -> jax.Array:
    return jnp.take_along_axis(dense_BTHC, positions_BP[..., None, None], axis=1)


@pytest.mark.parametrize("implementation", ["reference", "blockwise"])
@pytest.mark.parametrize(("dtype", "atol"), [("float32", 2e-5), ("bfloat16", 4e-2)])
def test_rows_and_their_gradients_are_those_of_dense_attention(implementation, dtype, atol):
    q_BTHC, k_BSJC, v_BSJC, positions_BP = arrays(dtype)

    def probed(*qkv: jax.Array) -> jax.Array:
        o_BPHC, _ = probe_attention(*qkv, positions_BP, implementation=implementation)
        assert o_BPHC.dtype == dtype
        return o_BPHC.astype(jnp.float32)

    def dense(*qkv: jax.Array) -> jax.Array:
        q_BTHC, *kv = (x.astype(jnp.float32) for x in qkv)
        return rows(dense_attention(q_BTHC, *kv, implementation="reference"), positions_BP)

    # Rows from 90 on are not probed, and must not be read either.
    clean = (q_BTHC, *(x[:, :90] for x in (k_BSJC, v_BSJC)))
    o_BPHC, transpose = jax.vjp(probed, q_BTHC, k_BSJC, v_BSJC)
    expected_BPHC, expected_transpose = jax.vjp(dense, *clean)
    np.testing.assert_allclose(o_BPHC, expected_BPHC, atol=atol)
    do_BPHC = jax.random.normal(jax.random.key(1), o_BPHC.shape)
    for gradient, expected in zip(transpose(do_BPHC), expected_transpose(do_BPHC), strict=True):
        expected = jnp.pad(expected, ((0, 0), (0, T - expected.shape[1]), (0, 0), (0, 0)))
        np.testing.assert_allclose(gradient.astype(jnp.float32), expected.astype(jnp.float32), atol=4 * atol)


@pytest.mark.parametrize("implementation", ["reference", "blockwise"])
def test_attention_is_the_mean_over_heads_and_a_constant(implementation):
    q_BTHC, k_BSJC, v_BSJC, positions_BP = arrays()
    _, attention_BPS = probe_attention(q_BTHC, k_BSJC, v_BSJC, positions_BP, implementation=implementation)
    k_BSHC = jnp.repeat(jnp.nan_to_num(k_BSJC), H // J, axis=2)
    logits_BHPS = jnp.einsum("bphc,bshc->bhps", rows(q_BTHC, positions_BP), k_BSHC) / C**0.5
    causal_BPS = jnp.arange(T) <= positions_BP[..., None]
    expected_BHPS = jax.nn.softmax(jnp.where(causal_BPS[:, None], logits_BHPS, -jnp.inf), axis=-1)
    np.testing.assert_allclose(attention_BPS, expected_BHPS.mean(axis=1), atol=1e-6)

    def attended(q_BTHC: jax.Array) -> jax.Array:
        _, attention_BPS = probe_attention(q_BTHC, k_BSJC, v_BSJC, positions_BP, implementation=implementation)
        return jnp.sum(jnp.sin(attention_BPS))

    assert not jax.grad(attended)(q_BTHC).any()


def test_heads_one_by_one_are_heads_all_at_once(monkeypatch):
    """As long sequences and short ones take them; what is compared with the definition above are all at once."""
    *qkv, positions_BP = arrays()

    def outcome() -> tuple[jax.Array, ...]:
        (o_BPHC, attention_BPS), transpose = jax.vjp(lambda *qkv: probe_attention(*qkv, positions_BP), *qkv)
        do_BPHC = jax.random.normal(jax.random.key(1), o_BPHC.shape)
        return o_BPHC, attention_BPS, *transpose((do_BPHC, jnp.zeros_like(attention_BPS)))

    at_once = outcome()
    monkeypatch.setattr(probes, "STEP_LOGITS", 0)
    for found, expected in zip(outcome(), at_once, strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("implementation", ["reference", "blockwise"])
def test_no_probes_give_no_rows(implementation):
    q_BTHC, k_BSJC, v_BSJC, positions_BP = arrays()
    o_BPHC, attention_BPS = probe_attention(q_BTHC, k_BSJC, v_BSJC, positions_BP[:, :0], implementation=implementation)
    assert o_BPHC.shape == (B, 0, H, C)
    assert attention_BPS.shape == (B, 0, T)


def test_memory_grows_with_rows_times_keys_alone():
    """Forward and backward, in multiples of the P×S array that is returned; 8 heads would be 8 of them at once."""

    def temporaries(tokens: int, probes: int = 64) -> int:
        def loss(q_BTHC: jax.Array, k_BSJC: jax.Array, v_BSJC: jax.Array, positions_BP: jax.Array) -> jax.Array:
            o_BPHC, attention_BPS = probe_attention(q_BTHC, k_BSJC, v_BSJC, positions_BP)
            return jnp.sum(o_BPHC**2) + jnp.sum(attention_BPS)

        heads = jax.ShapeDtypeStruct((1, tokens, 16, 64), jnp.float32)
        positions = jax.ShapeDtypeStruct((1, probes), jnp.int32)
        compiled = jax.jit(jax.grad(loss, argnums=(0, 1, 2))).lower(heads, heads, heads, positions).compile()
        analysis = compiled.memory_analysis()
        assert analysis is not None
        return analysis.temp_size_in_bytes

    at_4k, at_8k = temporaries(4096), temporaries(8192)
    assert at_8k <= 2.2 * at_4k
    # Copies of keys and values by head, and their gradients, are linear as well.
    assert at_8k <= 8 * 8192 * 64 * 4 + 5 * 8192 * 16 * 64 * 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"positions_BP": jnp.zeros((2, 3))}, "positions_BP: needs int32"),
        ({"positions_BP": jnp.zeros((1, 3), jnp.int32)}, r"positions_BP: needs shape \(2, any\)"),
        ({"implementation": "pallas"}, "probe_attention has no 'pallas'; it has auto, reference, blockwise"),
    ],
)
def test_bad_arguments_are_named(change, message):
    q_BTHC, k_BSJC, v_BSJC, positions_BP = arrays()
    call = {"q_BTHC": q_BTHC, "k_BSJC": k_BSJC, "v_BSJC": v_BSJC, "positions_BP": positions_BP} | change
    with pytest.raises(ValueError, match=message):
        probe_attention(**call)
