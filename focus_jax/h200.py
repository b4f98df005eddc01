"""NVIDIA H200s to compile for, on a machine without one.

Needs jax and the packages of requirements-h200.txt, and that JAX itself runs on the CPU.
"""

import importlib.util
from collections.abc import Sequence

import jax
from jax.experimental import topologies

DEVICE_KIND = "NVIDIA H200"
MEMORY_BYTES = 150_754_820_096
"""Of one device."""
THREADS_PER_MULTIPROCESSOR = 2048
REGISTERS_PER_MULTIPROCESSOR = 65536
SHARED_PER_MULTIPROCESSOR = 233472

# The facts of one H200 as XLA's GpuTargetConfigProto; ACCELERATED_FEATURES means sm_90a, which has wgmma.
_TARGET = f"""
gpu_device_info {{
  threads_per_block_limit: 1024  threads_per_warp: 32
  shared_memory_per_block: 49152  shared_memory_per_core: {SHARED_PER_MULTIPROCESSOR}
  shared_memory_per_block_optin: 232448
  threads_per_core_limit: {THREADS_PER_MULTIPROCESSOR}  core_count: 132  fpus_per_core: 128
  block_dim_limit_x: 2147483647  block_dim_limit_y: 65535  block_dim_limit_z: 65535
  memory_bandwidth: 4800000000000  l2_cache_size: 62914560  clock_rate_ghz: 1.98  device_memory_size: {MEMORY_BYTES}
  cuda_compute_capability {{ major: 9 feature_extension: ACCELERATED_FEATURES }}
  registers_per_core_limit: {REGISTERS_PER_MULTIPROCESSOR}  registers_per_block_limit: 65536
  driver_version: "13.0.0" runtime_version: "13.0.0" compile_time_toolkit_version: "13.0.0" dnn_version: "9.15.0"
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 15 }}
runtime_version {{ major: 13 minor: 0 patch: 0 }}
device_description_str: "{DEVICE_KIND}"
"""


def can_compile() -> bool:
    """Whether the packages of requirements-h200.txt are there."""
    return all(importlib.util.find_spec(name) for name in ("jax_cuda13_plugin", "nvidia"))


def devices(count: int) -> Sequence[jax.Device]:
    """So many H200s of one host, for a mesh that is compiled for."""
    topology = topologies.get_topology_desc("h200", platform="cuda", target_config=_TARGET, topology=f"1x1x{count}")
    return topology.devices
