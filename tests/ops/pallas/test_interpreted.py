"""Kernels in Pallas' interpreter against the float32 definition: outputs and all gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from focus_jax.ops import dense_attention
from focus_jax.ops.pallas import interpreted, tuning
from tests.ops.pallas.calls import CALLS, Call

TOLERANCE = {"float32": 2e-5, "bfloat16": 4e-2}


@pytest.fixture
def small_tiles(monkeypatch):
    """Many tiles at lengths that the interpreter is fast enough for, in the proportions of the real ones."""
    tiles = {"forward": (32, 16), "backward_queries": (32, 16), "backward_keys": (16, 32)}
    monkeypatch.setattr(tuning, "tile_of", lambda kernel, *_, **__: tuning.Tile(*tiles[kernel], warps=4, stages=1))


def run(call: Call, arguments: dict[str, jax.Array], do: jax.Array, implementation: str) -> dict[str, jax.Array]:
    """Hardly optimized: compiling takes most of the time."""
    program = jax.jit(lambda arguments, do: call.run_with_gradients(arguments, do, implementation))
    with interpreted():
        return program.lower(arguments, do).compile({"xla_backend_optimization_level": 0})(arguments, do)


def check(call: Call) -> None:
    arguments = call.arguments()
    do = jnp.asarray(np.random.default_rng(1).normal(size=arguments["q_BTHC"].shape), call.dtype)
    computed = run(call, arguments, do, "pallas")
    exact = {name: x.astype(jnp.float32) if x.dtype == jnp.bfloat16 else x for name, x in arguments.items()}
    expected = run(call, exact, do.astype(jnp.float32), "reference")
    for name, array in expected.items():
        assert computed[name].dtype == arguments.get(name, do).dtype, name
        scale = max(1.0, float(jnp.abs(array).max()))
        np.testing.assert_allclose(
            computed[name].astype(jnp.float32) / scale, array / scale, atol=TOLERANCE[call.dtype], rtol=0, err_msg=name
        )


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
