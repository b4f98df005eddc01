"""Compiles every attention kernel for an H200 on a machine without a GPU.

`make check-h200`, or `python -m focus_jax.bench.h200` where the packages of requirements-h200.txt are installed.
Prints tile sizes, registers, shared memory, and the thread blocks per multiprocessor that these allow; fails on spills,
on products that are not wgmma, and on memory that grows faster than the length. Needs jax and numpy beside the CUDA
compiler packages; nothing runs.
"""

import importlib.util
import itertools
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from focus_jax import h200
from focus_jax.bench.programs import with_gradient
from focus_jax.ops import dense_attention, routed_attention
from focus_jax.ops.pallas import tuning

SHARED_RESERVED_PER_BLOCK = 1024
REGISTERS_GRANULE = 8
"""Registers of a thread are handed out in eights."""

DENSE = partial(dense_attention, implementation="pallas")
ROUTED = partial(routed_attention, num_groups=8, window=128, implementation="pallas")

MEMORY_LENGTHS = (8192, 16384, 32768)
LARGEST_GROWTH = 2.2
"""Of the temporaries from one length to twice that length."""
LARGEST_PART = 12.0
"""Of the bytes of q, k, v and o."""


@dataclass(frozen=True)
class CompiledKernel:
    """What one kernel takes of a multiprocessor."""

    name: str
    threads: int
    registers: int
    spilled_bytes: int
    shared_bytes: int
    wgmma: bool
    """All matrix products are wgmma, none the older mma.sync."""
    serialized: bool
    """ptxas had to make wgmma wait for one another."""

    @property
    def blocks_per_multiprocessor(self) -> int:
        registers = -(-self.registers // REGISTERS_GRANULE) * REGISTERS_GRANULE * self.threads
        return min(
            h200.THREADS_PER_MULTIPROCESSOR // self.threads,
            h200.REGISTERS_PER_MULTIPROCESSOR // registers,
            h200.SHARED_PER_MULTIPROCESSOR // (self.shared_bytes + SHARED_RESERVED_PER_BLOCK),
        )


def compile_for_h200(
    function: Callable[..., object], *shapes: jax.ShapeDtypeStruct
) -> tuple[jax.stages.Compiled, Sequence[CompiledKernel]]:
    """The compiled program, for its memory analysis, and its kernels.

    Raises:
      FileNotFoundError: the CUDA assembler of requirements-h200.txt is not installed.
    """
    mesh = jax.make_mesh((1,), ("data",), axis_types=(AxisType.Auto,), devices=h200.devices(1))
    replicated = NamedSharding(mesh, PartitionSpec())
    placed = [jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=replicated) for shape in shapes]
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
        lowered = jax.jit(function, out_shardings=replicated).trace(*placed).lower(lowering_platforms=("cuda",))
    with tempfile.TemporaryDirectory() as folder:
        compiled = lowered.compile(compiler_options={"xla_dump_to": folder, "xla_dump_emitter_re": "ptx"})
        return compiled, read_kernels(Path(folder))


def read_kernels(dump: Path) -> Sequence[CompiledKernel]:
    [launches] = [path.read_text() for path in dump.glob("*.thunk_sequence.txt")]
    kernels = []
    for path in sorted(dump.glob("*.ptx")):
        source = path.read_text()
        report = assemble(path)
        for name, spilled, registers in re.findall(
            r"Compiling entry function '(\w+)'.*?(\d+) bytes spill stores.*?Used (\d+) registers", report, re.DOTALL
        ):
            launch = re.search(rf"\b{name} grid: .*? threads: \[(\d+), 1, 1\]  shared_memory: (\d+) bytes", launches)
            if launch is None:
                raise RuntimeError(f"{name}: compiled but not launched in XLA's list of thunks")
            threads, shared = map(int, launch.groups())
            wgmma = "wgmma.mma_async" in source and not re.search(r"\bmma\.sync", source)
            serialized = "C7510" in report or "C7511" in report
            kernels.append(CompiledKernel(name, threads, int(registers), int(spilled), shared, wgmma, serialized))
    return kernels


def assemble(ptx: Path) -> str:
    """What ptxas says about registers and spills."""
    command = [str(assembler()), "-v", "-arch=sm_90a", str(ptx), "-o", os.devnull]
    return subprocess.run(command, capture_output=True, text=True, check=True).stderr


def assembler() -> Path:
    package = importlib.util.find_spec("nvidia.cu13") if importlib.util.find_spec("nvidia") else None
    for root in package.submodule_search_locations or () if package else ():
        path = Path(root, "bin", "ptxas")
        if path.exists():
            return path
    raise FileNotFoundError("ptxas: not installed; install the packages of requirements-h200.txt")


class Program(NamedTuple):
    """A call of an attention function with its gradient, and the patterns whose three kernels it has."""

    name: str
    patterns: Sequence[str]
    function: Callable[..., object]
    shapes: Sequence[jax.ShapeDtypeStruct]


def programs(channels: int) -> Sequence[Program]:
    """Between them every kernel, forward and backward; gates, shared groups, odd lengths, narrow and wide windows."""
    return (
        Program("dense", ("dense",), with_gradient(DENSE), heads(4096, channels)),
        Program("routed", ("local", "distant"), with_gradient(ROUTED), (*heads(4096, channels), *groups(4096, 1, 1))),
        Program(
            "shared",
            ("local", "distant_shared"),
            with_gradient(ROUTED),
            (*heads(4096, channels), *groups(4096, 2, 2)),
        ),
        Program(
            "shared, of 64",
            ("local", "distant_shared"),
            with_gradient(partial(ROUTED, num_groups=64, window=512)),
            (*heads(4000, channels), *groups(4000, 2, 2)),
        ),
        Program(
            "gated",
            ("local", "distant"),
            with_gradient(gated, differentiated=5),
            (*heads(4096, channels), *gates(4096, 2), *groups(4096, 2, 1)),
        ),
    )


def heads(T: int, channels: int) -> Sequence[jax.ShapeDtypeStruct]:
    """do, q, k and v."""
    return [jax.ShapeDtypeStruct((1, T, count, channels), jnp.bfloat16) for count in (8, 8, 4, 4)]


def groups(T: int, M: int, N: int) -> Sequence[jax.ShapeDtypeStruct]:
    return [jax.ShapeDtypeStruct((1, T, count), jnp.int32) for count in (M, N)]


def gates(T: int, M: int) -> Sequence[jax.ShapeDtypeStruct]:
    return [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((1, T, M), (1, T))]


def gated(q, k, v, query_gate, key_gate, query_groups, key_groups) -> jax.Array:
    return ROUTED(q, k, v, query_groups, key_groups, query_gate_BTM=query_gate, key_gate_BS=key_gate)


def check(program: Program, channels: int) -> bool:
    """Prints a line per kernel; whether all of them are there, without spills and with wgmma."""
    _, kernels = compile_for_h200(program.function, *program.shapes)
    found = {kernel.name: kernel for kernel in kernels}
    sound = True
    for pattern in program.patterns:
        for stem in tuning.KERNELS:
            kernel = found[f"{pattern}_{stem}"]
            tile = tuning.tile_of(stem, pattern, channels, jnp.dtype(jnp.bfloat16))
            fault = ", ".join(faults(kernel))
            sound &= not fault
            print(
                f"{channels:>4}  {program.name:13}  {kernel.name:32}{tile.queries:>4} × {tile.keys:<4}{tile.warps:>5}"
                f"{tile.stages:>7}{kernel.registers:>10}{kernel.shared_bytes:>9}{kernel.blocks_per_multiprocessor:>7}"
                f"  {fault or 'ok'}"
            )
    return sound


def faults(kernel: CompiledKernel) -> Sequence[str]:
    found = []
    if kernel.spilled_bytes:
        found.append(f"spills {kernel.spilled_bytes} bytes")
    if not kernel.wgmma:
        found.append("not all wgmma")
    if kernel.serialized:
        found.append("wgmma serialized")
    return found


def check_memory(name: str, attention: Callable[..., jax.Array], group_counts: Sequence[int]) -> bool:
    """Prints what a call with its gradients holds beside arguments and results, by length; whether that is linear."""
    parts = []
    for T in MEMORY_LENGTHS:
        x = jax.ShapeDtypeStruct((1, T, 8, 64), jnp.bfloat16)
        taken = groups(T, *group_counts) if group_counts else ()
        compiled, _ = compile_for_h200(with_gradient(attention), *4 * [x], *taken)
        memory = compiled.memory_analysis()
        assert memory is not None
        parts.append(memory.temp_size_in_bytes / (4 * x.size * x.dtype.itemsize))
    growth = [2 * after / before for before, after in itertools.pairwise(parts)]
    sound = max(growth) <= LARGEST_GROWTH and max(parts) <= LARGEST_PART
    shown = ", ".join(f"{part:.2f}" for part in parts)
    verdict = "ok" if sound else "too much"
    print(f"temporaries of {name}: {shown} times q, k, v and o at {MEMORY_LENGTHS} tokens  {verdict}")
    return sound


def main() -> int:
    jax.config.update("jax_platforms", "cpu")
    print("head  program        kernel                        queries×keys warps stages registers   shared blocks")
    sound = [check(program, channels) for channels in (64, 128) for program in programs(channels)]
    sound.append(check_memory("dense attention", DENSE, ()))
    sound += [check_memory(f"routed attention (M = {M})", ROUTED, (M, 1)) for M in (1, 2)]
    return 0 if all(sound) else 1


if __name__ == "__main__":
    sys.exit(main())
