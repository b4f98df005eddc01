"""Kernels lower for CUDA on a machine without a GPU: the interpreter accepts things that Triton refuses."""

import re

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, AxisType

from focus_jax.ops.pallas import tuning
from tests.ops.pallas.calls import Call

pytestmark = pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated")

H200 = AbstractMesh(
    (1,), ("x",), axis_types=(AxisType.Auto,), abstract_device=AbstractDevice("NVIDIA H200", 132, "gpu")
)


def lowered_kernels(call: Call) -> list[str]:
    """The names of the Triton kernels of a call with its gradients."""
    arguments = call.arguments()
    do = jnp.zeros(arguments["q_BTHC"].shape, call.dtype)
    run = jax.jit(lambda arguments, do: call.run_with_gradients(arguments, do, "pallas"))
    with jax.sharding.use_abstract_mesh(H200):
        text = run.trace(arguments, do).lower(lowering_platforms=("cuda",)).as_text()
    return sorted(re.findall(r'name = "(\w+)"', text))


def kernels_of(*patterns: str) -> list[str]:
    return sorted(f"{pattern}_{kernel}" for pattern in patterns for kernel in tuning.KERNELS)


@pytest.mark.parametrize(
    "call",
    [
        Call(name="plain", T=256, S=256, C=64, K=4, dtype="bfloat16"),
        Call(name="everything", T=200, S=300, H=4, C=128, query_offset=64, K=64, M=2, gates="qk", dtype="bfloat16"),
        Call(name="shared groups", T=200, S=200, H=4, C=80, K=64, M=2, N=2, window=200 // 2),
        Call(name="wide window", T=1000, S=1000, H=4, C=256, K=3, window=400, dtype="bfloat16"),
        Call(name="small heads", T=300, S=300, C=32, K=3, dtype="float16"),
    ],
    ids=lambda call: call.name,
)
def test_routed_lowers(call: Call):
    distant = "distant" if call.N == 1 else "distant_shared"
    assert lowered_kernels(call) == kernels_of("local", distant)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("C", [32, 80, 256])
def test_dense_lowers(C: int, dtype: str):
    assert lowered_kernels(Call(name="dense", T=300, S=300, H=4, C=C, dtype=dtype)) == kernels_of("dense")
