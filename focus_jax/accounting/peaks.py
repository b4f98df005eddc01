"""FLOP/s that a device could reach: what utilisation is a share of."""

import functools
import time
from typing import NamedTuple

import jax
import jax.numpy as jnp

# Dense bfloat16 (products without structured sparsity, sums in float32), per device, by the beginning of
# jax.Device.device_kind; the longest that fits counts. From NVIDIA's data sheets, which print the sparse figure, twice
# this one, except where noted.
BFLOAT16_DENSE = {
    "NVIDIA B200": 2250e12,  # HGX B200 data sheet: 36 PFLOP/s for eight, sparse
    "NVIDIA GH200": 990e12,  # GH200 data sheet
    "NVIDIA H200": 989e12,  # H200 data sheet: 1,979, sparse (SXM)
    "NVIDIA H200 NVL": 835e12,  # H200 data sheet: 1,671, sparse
    "NVIDIA H100": 989e12,  # H100 data sheet: 1,979, sparse (SXM)
    "NVIDIA H100 NVL": 835e12,  # H100 data sheet: 1,671, sparse
    "NVIDIA H100 PCIe": 756e12,  # H100 PCIe product brief: 1,513, sparse
    "NVIDIA A100": 312e12,  # A100 data sheet: 312, dense
    "NVIDIA A10": 125e12,  # A10 data sheet: 125, dense
    "NVIDIA A10G": 70e12,  # A10G data sheet: 70, dense
    "NVIDIA L40S": 362e12,  # L40S data sheet: 362.05, dense
    "NVIDIA L4": 121e12,  # L4 data sheet: 242, sparse
    "NVIDIA GeForce RTX 4090": 165e12,  # Ada architecture whitepaper: 165.2, dense, sums in float32
    "NVIDIA GeForce RTX 3090": 71e12,  # Ampere GA102 whitepaper: 71, dense, sums in float32
}
MATMUL_SIZE = {"cpu": 2048, "gpu": 8192, "tpu": 8192}
"""Of the square product that stands for what a machine can do, by platform."""


class Peak(NamedTuple):
    flops_per_second: float
    """Of all devices together."""
    source: str
    """In words."""


def peak(kind: str, devices: int, dtype: str) -> Peak:
    """Of so many devices of a kind: published where it is known, else the rate of a large matrix product here."""
    published = published_peak(kind)
    if published is not None:
        return Peak(devices * published, f"{devices} × {published / 1e12:,.0f} TFLOP/s (bfloat16, dense) of {kind}")
    measured = matmul_rate(dtype)
    return Peak(devices * measured, f"{devices * measured / 1e12:.3g} TFLOP/s, measured with a {dtype} matrix product")


def published_peak(kind: str) -> float | None:
    """Of one device; None where it is not in the table."""
    known = [name for name in BFLOAT16_DENSE if kind == name or kind.startswith((f"{name} ", f"{name}-"))]
    return BFLOAT16_DENSE[max(known, key=len)] if known else None


@functools.cache
def matmul_rate(dtype: str) -> float:
    """FLOP/s of a large square product on the default device, the best of three."""
    size = MATMUL_SIZE[jax.default_backend()]
    a = jnp.ones((size, size), dtype)
    multiply = jax.jit(jnp.matmul)
    jax.block_until_ready(multiply(a, a))
    return 2 * size**3 / min(_seconds(multiply, a) for _ in range(3))


def _seconds(multiply, a: jax.Array) -> float:
    start = time.perf_counter()
    jax.block_until_ready(multiply(a, a))
    return time.perf_counter() - start
