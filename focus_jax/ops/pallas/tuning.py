"""Tile sizes, warps and pipeline stages of each kernel, by pattern, head size and type.

Chosen so that an H200 compile of every kernel spills nothing and multiplies by wgmma (bench/h200.py prints registers,
shared memory and blocks per multiprocessor), otherwise by what larger Triton code bases use on Hopper.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import jax.numpy as jnp
from jax.experimental.pallas import triton

Kernel = Literal["forward", "backward_queries", "backward_keys"]

FORWARD_ONLY: Sequence[Kernel] = ("forward",)
KERNELS: Sequence[Kernel] = ("forward", "backward_queries", "backward_keys")


class Tile(NamedTuple):
    """One step of a kernel multiplies `queries` × `keys` pairs."""

    queries: int
    keys: int
    warps: int
    stages: int

    @property
    def compiler_params(self) -> triton.CompilerParams:
        return triton.CompilerParams(num_warps=self.warps, num_stages=self.stages)


# By head size and kernel. A window has so few tiles per block that small ones, several on a multiprocessor, hide how
# each begins and ends.
HALF_PRECISION: Mapping[int, Mapping[str, Tile]] = {
    64: {
        "forward": Tile(128, 64, 8, 3),
        "local_forward": Tile(64, 64, 4, 2),
        "backward_queries": Tile(128, 64, 8, 2),
        "local_backward_queries": Tile(64, 64, 4, 2),
        "backward_keys": Tile(64, 64, 4, 2),
    },
    128: {
        "forward": Tile(128, 64, 8, 3),
        "local_forward": Tile(64, 64, 4, 2),
        "backward_queries": Tile(128, 64, 8, 3),
        "local_backward_queries": Tile(64, 64, 4, 2),
        "backward_keys": Tile(64, 128, 8, 2),
        # The test for shared groups takes the registers that a tile of 64 × 128 needs.
        "distant_shared_backward_keys": Tile(64, 64, 8, 2),
    },
    256: {
        "forward": Tile(128, 64, 8, 2),
        "local_forward": Tile(64, 32, 4, 2),
        "backward_queries": Tile(64, 64, 8, 2),
        "backward_keys": Tile(32, 64, 8, 2),
    },
}
SINGLE_PRECISION: Mapping[int, Mapping[str, Tile]] = {
    64: dict.fromkeys(KERNELS, Tile(32, 32, 4, 1)),
    256: dict.fromkeys(KERNELS, Tile(32, 32, 8, 1)),
}


def tile_of(kernel: Kernel, pattern: str, channels: int, dtype: jnp.dtype) -> Tile:
    """The tile of a kernel over a pattern with heads of `channels`."""
    sizes = HALF_PRECISION if dtype.itemsize == 2 else SINGLE_PRECISION
    fitting = [size for size in sizes if channels <= size]
    if not fitting:
        raise NotImplementedError(f"pallas has kernels for heads of up to {max(sizes)} channels, not {channels}")
    tiles = sizes[min(fitting)]
    return tiles.get(f"{pattern}_{kernel}", tiles[kernel])


def layout_blocks(kernels: Sequence[Kernel], channels: int, dtype: jnp.dtype) -> tuple[int, int]:
    """Slots of a block of queries and of keys that the tiles of these kernels divide."""
    tiles = [tile_of(kernel, "distant", channels, dtype) for kernel in kernels]
    return max(tile.queries for tile in tiles), max(tile.keys for tile in tiles)
