"""What programs are traced for."""

import jax


def target_platform() -> str:
    """ "cpu", "gpu" or "tpu": that of the mesh that is set, which may be compiled for on another machine, else of JAX's
    default backend."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    platform = device.platform if device else jax.default_backend()
    return "gpu" if platform == "cuda" else platform
