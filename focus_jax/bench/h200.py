"""Compiles every attention kernel for an H200 on a machine without a GPU, and fails on spills or missing wgmma.

`make check-h200`, or `python -m focus_jax.bench.h200` where the packages of requirements-h200.txt are installed.
Prints tile sizes, registers, shared memory, and the thread blocks per multiprocessor that these allow. Needs jax and
numpy beside the CUDA compiler packages; nothing runs.
"""

import importlib.util
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
from jax.experimental import topologies
from jax.sharding import NamedSharding, PartitionSpec

from focus_jax.ops import dense_attention, routed_attention
from focus_jax.ops.pallas import tuning

THREADS_PER_MULTIPROCESSOR = 2048
REGISTERS_PER_MULTIPROCESSOR = 65536
SHARED_PER_MULTIPROCESSOR = 233472
SHARED_RESERVED_PER_BLOCK = 1024
REGISTERS_GRANULE = 8
"""Registers of a thread are handed out in eights."""

# The facts of one H200 as XLA's GpuTargetConfigProto; ACCELERATED_FEATURES means sm_90a, which has wgmma.
H200 = f"""
gpu_device_info {{
  threads_per_block_limit: 1024  threads_per_warp: 32
  shared_memory_per_block: 49152  shared_memory_per_core: {SHARED_PER_MULTIPROCESSOR}
  shared_memory_per_block_optin: 232448
  threads_per_core_limit: {THREADS_PER_MULTIPROCESSOR}  core_count: 132  fpus_per_core: 128
  block_dim_limit_x: 2147483647  block_dim_limit_y: 65535  block_dim_limit_z: 65535
  memory_bandwidth: 4800000000000  l2_cache_size: 62914560  clock_rate_ghz: 1.98  device_memory_size: 150754820096
  cuda_compute_capability {{ major: 9 feature_extension: ACCELERATED_FEATURES }}
  registers_per_core_limit: {REGISTERS_PER_MULTIPROCESSOR}  registers_per_block_limit: 65536
  driver_version: "13.0.0" runtime_version: "13.0.0" compile_time_toolkit_version: "13.0.0" dnn_version: "9.15.0"
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 15 }}
runtime_version {{ major: 13 minor: 0 patch: 0 }}
device_description_str: "NVIDIA H200"
"""


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
            THREADS_PER_MULTIPROCESSOR // self.threads,
            REGISTERS_PER_MULTIPROCESSOR // registers,
            SHARED_PER_MULTIPROCESSOR // (self.shared_bytes + SHARED_RESERVED_PER_BLOCK),
        )


def compile_for_h200(
    function: Callable[..., object], *shapes: jax.ShapeDtypeStruct
) -> tuple[jax.stages.Compiled, Sequence[CompiledKernel]]:
    """The compiled program, for its memory analysis, and its kernels.

    Raises:
      FileNotFoundError: the CUDA assembler of requirements-h200.txt is not installed.
    """
    topology = topologies.get_topology_desc("h200", platform="cuda", target_config=H200, topology="1x1x1")
    mesh = topologies.make_mesh(topology, (1,), ("data",))
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
    """Between them every kernel, forward and backward, with and without gates and shared groups."""
    B, T, H, J, K = 1, 4096, 8, 4, 8
    q, o = 2 * [jax.ShapeDtypeStruct((B, T, H, channels), jnp.bfloat16)]
    k, v = 2 * [jax.ShapeDtypeStruct((B, T, J, channels), jnp.bfloat16)]
    one_group, two_groups = (jax.ShapeDtypeStruct((B, T, M), jnp.int32) for M in (1, 2))
    query_gate, key_gate = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((B, T, 2), (B, T)))
    routed = partial(routed_attention, num_groups=K, window=128, implementation="pallas")

    def gated(q, k, v, query_gate, key_gate, query_groups, key_groups):
        return routed(q, k, v, query_groups, key_groups, query_gate_BTM=query_gate, key_gate_BS=key_gate)

    dense = with_gradient(partial(dense_attention, implementation="pallas"), 3)
    both = "local", "distant"
    return (
        Program("dense", ("dense",), dense, (o, q, k, v)),
        Program("routed", both, with_gradient(routed, 3), (o, q, k, v, one_group, one_group)),
        Program("shared groups", both, with_gradient(routed, 3), (o, q, k, v, two_groups, two_groups)),
        Program("gated", both, with_gradient(gated, 5), (o, q, k, v, query_gate, key_gate, two_groups, one_group)),
    )


def with_gradient(attention: Callable[..., jax.Array], differentiated: int) -> Callable[..., object]:
    """The output and the gradients of the first arguments, given that of the output."""

    def run(do: jax.Array, *arguments: jax.Array) -> object:
        fixed = arguments[differentiated:]
        o, pull = jax.vjp(lambda *first: attention(*first, *fixed), *arguments[:differentiated])
        return o, pull(do)

    return run


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
                f"{channels:>4}  {program.name:13}  {kernel.name:26}{tile.queries:>6} × {tile.keys:<4}{tile.warps:>5}"
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


def main() -> int:
    jax.config.update("jax_platforms", "cpu")
    print("head  program        kernel                   queries×keys warps stages registers   shared blocks")
    sound = [check(program, channels) for channels in (64, 128) for program in programs(channels)]
    return 0 if all(sound) else 1


if __name__ == "__main__":
    sys.exit(main())
