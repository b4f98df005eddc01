"""Kernels in Pallas' interpreter against the float32 definition: outputs and all gradients."""

import jax.numpy as jnp
import pytest

from focus_jax.ops import dense_attention
from focus_jax.ops.pallas import interpreted, tuning
from tests.ops.pallas.calls import CALLS, Call


@pytest.fixture
def small_tiles(monkeypatch):
    """Many tiles at lengths that the interpreter is fast enough for, in the proportions of the real ones."""
    tiles = {"forward": (32, 16), "backward_queries": (32, 16), "backward_keys": (16, 32)}
    monkeypatch.setattr(tuning, "tile_of", lambda kernel, *_, **__: tuning.Tile(*tiles[kernel], warps=4, stages=1))


def check(call: Call) -> None:
    with interpreted():
        call.check("pallas")


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.name)
def test_equals_definition(call: Call, small_tiles):
    check(call)


@pytest.mark.slow
@pytest.mark.parametrize("C", [32, 64, 128, 192, 256])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_equals_definition_with_real_tiles(C: int, dtype: str):
    check(Call(name="routed", T=300, S=300, H=4, J=2, C=C, K=2, M=2, N=2, window=20, dtype=dtype))
    check(Call(name="dense", T=300, S=300, H=4, J=2, C=C, dtype=dtype))


def test_says_what_it_needs():
    q = jnp.ones((1, 8, 1, 32))
    with pytest.raises(NotImplementedError, match="needs an NVIDIA GPU, this is cpu"):
        dense_attention(q, q, q, implementation="pallas")
    wide = jnp.ones((1, 8, 1, 512))
    with interpreted(), pytest.raises(NotImplementedError, match="up to 256 channels, not 512"):
        dense_attention(wide, wide, wide, implementation="pallas")
