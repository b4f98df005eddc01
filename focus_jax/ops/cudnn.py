"""Dense attention by cuDNN, the strongest dense baseline on an NVIDIA GPU. Letters as in attention.py."""

import jax


def dense_attention(
    q_BTHC: jax.Array, k_BSJC: jax.Array, v_BSJC: jax.Array, *, query_offset: int, scale: float
) -> jax.Array:
    if query_offset:
        raise NotImplementedError(f"cudnn aligns the first query with the first key; query_offset is {query_offset}")
    if q_BTHC.dtype.itemsize != 2:
        raise NotImplementedError(f"cudnn needs bfloat16 or float16 queries, keys and values, not {q_BTHC.dtype}")
    return jax.nn.dot_product_attention(q_BTHC, k_BSJC, v_BSJC, scale=scale, is_causal=True, implementation="cudnn")
