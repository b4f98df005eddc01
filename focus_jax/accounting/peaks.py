"""FLOP/s that a device could reach: what utilisation is a share of."""

import functools
import re
import time
from typing import NamedTuple

import jax
import jax.numpy as jnp

BFLOAT16_DENSE = {
    "NVIDIA B200": 2250e12,  # HGX B200 data sheet: 4.5 PFLOP/s, sparse
    "NVIDIA GH200": 990e12,  # GH200 data sheet: 990, and 1,979 sparse
    "NVIDIA H200": 989e12,  # H200 data sheet (SXM): 1,979, sparse
    "NVIDIA H200 NVL": 835e12,  # H200 data sheet: 1,671, sparse
    "NVIDIA H100": 989e12,  # H100 data sheet (SXM): 1,979, sparse
    "NVIDIA H100 NVL": 835e12,  # H100 data sheet: 1,671, sparse
    "NVIDIA H100 PCIe": 756e12,  # H100 data sheet: 1,513, sparse
    "NVIDIA A100": 312e12,  # A100 data sheet: 312, and 624 sparse
    "NVIDIA A10": 125e12,  # A10 data sheet: 125, and 250 sparse
    "NVIDIA A10G": 70e12,  # A10G data sheet: 70, and 140 sparse
    "NVIDIA L40S": 362e12,  # L40S data sheet: 362.05, and 733 sparse
    "NVIDIA L4": 121e12,  # L4 data sheet: 242, sparse
    "NVIDIA GeForce RTX 4090": 165e12,  # Ada architecture whitepaper, sums in float32: 165.2, and 330.4 sparse
    "NVIDIA GeForce RTX 3090": 71e12,  # GA102 architecture whitepaper, sums in float32: 71, and 142 sparse
}
"""Products of bfloat16 without structured sparsity, sums in float32, of one device, by its name. From NVIDIA's own data
sheets, which print the figure with sparsity, twice as large, alone or beside it; both are given where both are."""
# What jax.Device.device_kind may have behind the name: form and memory, which change nothing ("NVIDIA A100-SXM4-80GB").
# Anything else ("RTX 4090 Laptop GPU", "RTX 3090 Ti", "MIG 1g.10gb") is another device.
_FORM_AND_MEMORY = re.compile(r"([ -](SXM\d?|PCIE|PCIe|HBM\d?e?|\d+GB?))*")
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
    known = [
        name for name in BFLOAT16_DENSE if kind.startswith(name) and _FORM_AND_MEMORY.fullmatch(kind, pos=len(name))
    ]
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
