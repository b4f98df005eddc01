"""Linear maps, norms and the MLP, as a config asks for them."""

import jax
import jax.numpy as jnp
from flax import nnx

from focus_jax import config


def linear(model: config.Model, inputs: int, outputs: int, axis: str, rngs: nnx.Rngs) -> nnx.Linear:
    """A map out of the residual stream; `axis` is the logical axis of its outputs."""
    return _linear(model, inputs, outputs, ("width", axis), axis, model.init_std, model.biases, rngs)


def head(model: config.Model, rows: int, rngs: nnx.Rngs) -> nnx.Linear:
    """From the residual stream to the (padded) vocabulary; never a bias."""
    return _linear(model, model.width, rows, ("width", "vocab"), "vocab", model.init_std, False, rngs)


def output_linear(model: config.Model, inputs: int, axis: str, rngs: nnx.Rngs) -> nnx.Linear:
    """A map into the residual stream; 2L of them add up there (GPT-2, section 2.3). `axis`: of its inputs."""
    std = model.init_std * (2 * model.layers) ** -0.5 if model.scale_residual_init else model.init_std
    return _linear(model, inputs, model.width, (axis, "width"), "vector_width", std, model.biases, rngs)


def _linear(
    model: config.Model,
    inputs: int,
    outputs: int,
    axes: tuple[str, str],
    bias_axis: str,
    std: float,
    bias: bool,
    rngs: nnx.Rngs,
) -> nnx.Linear:
    return nnx.Linear(
        inputs,
        outputs,
        use_bias=bias,
        kernel_init=nnx.initializers.normal(std),
        kernel_metadata={"axes": axes},
        bias_metadata={"axes": (bias_axis,)},
        dtype=jnp.dtype(model.compute_dtype),
        rngs=rngs,
    )


def norm(model: config.Model, rngs: nnx.Rngs) -> nnx.LayerNorm | nnx.RMSNorm:
    """Computed in float32, returned in the compute dtype."""
    dtype = jnp.dtype(model.compute_dtype)
    axes = {"axes": ("vector_width",)}
    if model.norm == "rmsnorm":
        return nnx.RMSNorm(model.width, epsilon=model.norm_epsilon, dtype=dtype, scale_metadata=axes, rngs=rngs)
    return nnx.LayerNorm(
        model.width,
        epsilon=model.norm_epsilon,
        use_bias=model.biases,
        use_fast_variance=False,
        dtype=dtype,
        scale_metadata=axes,
        bias_metadata=axes,
        rngs=rngs,
    )


def head_norm(model: config.Model, head_width: int, rngs: nnx.Rngs) -> nnx.RMSNorm:
    """Over the channels of each head."""
    dtype = jnp.dtype(model.compute_dtype)
    axes = {"axes": ("head_channels",)}
    return nnx.RMSNorm(head_width, epsilon=model.norm_epsilon, dtype=dtype, scale_metadata=axes, rngs=rngs)


class MLP(nnx.Module):
    """GPT-2's (tanh GELU) or Llama's (SwiGLU, arXiv 2002.05202)."""

    def __init__(self, model: config.Model, rngs: nnx.Rngs):
        self.gated = model.mlp == "swiglu"
        self.up = linear(model, model.width, model.mlp_width, "mlp", rngs)
        if self.gated:
            self.gate = linear(model, model.width, model.mlp_width, "mlp", rngs)
        self.down = output_linear(model, model.mlp_width, "mlp", rngs)

    def __call__(self, normed_BTD: jax.Array) -> jax.Array:
        up_BTF = self.up(normed_BTD)
        hidden_BTF = jax.nn.silu(self.gate(normed_BTD)) * up_BTF if self.gated else jax.nn.gelu(up_BTF)
        return self.down(hidden_BTF)
