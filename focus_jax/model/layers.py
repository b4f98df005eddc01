"""Linear maps, norms and the MLP, as a config asks for them."""

import jax
import jax.numpy as jnp
from flax import nnx

from focus_jax import config


def linear(model: config.Model, inputs: int, outputs: int, rngs: nnx.Rngs) -> nnx.Linear:
    return _linear(model, inputs, outputs, model.init_std, model.biases, rngs)


def head(model: config.Model, rows: int, rngs: nnx.Rngs) -> nnx.Linear:
    """From the residual stream to the (padded) vocabulary; never a bias."""
    return _linear(model, model.width, rows, model.init_std, False, rngs)


def output_linear(model: config.Model, inputs: int, rngs: nnx.Rngs) -> nnx.Linear:
    """A map into the residual stream; 2L of them add up there (GPT-2, section 2.3)."""
    std = model.init_std * (2 * model.layers) ** -0.5 if model.scale_residual_init else model.init_std
    return _linear(model, inputs, model.width, std, model.biases, rngs)


def _linear(model: config.Model, inputs: int, outputs: int, std: float, bias: bool, rngs: nnx.Rngs) -> nnx.Linear:
    return nnx.Linear(
        inputs,
        outputs,
        use_bias=bias,
        kernel_init=nnx.initializers.normal(std),
        dtype=jnp.dtype(model.compute_dtype),
        rngs=rngs,
    )


def norm(model: config.Model, rngs: nnx.Rngs) -> nnx.LayerNorm | nnx.RMSNorm:
    """Computed in float32, returned in the compute dtype."""
    dtype = jnp.dtype(model.compute_dtype)
    if model.norm == "rmsnorm":
        return nnx.RMSNorm(model.width, epsilon=model.norm_epsilon, dtype=dtype, rngs=rngs)
    return nnx.LayerNorm(
        model.width,
        epsilon=model.norm_epsilon,
        use_bias=model.biases,
        use_fast_variance=False,
        dtype=dtype,
        rngs=rngs,
    )


class MLP(nnx.Module):
    """GPT-2's (tanh GELU) or Llama's (SwiGLU, arXiv 2002.05202)."""

    def __init__(self, model: config.Model, rngs: nnx.Rngs):
        self.gated = model.mlp == "swiglu"
        self.up = linear(model, model.width, model.mlp_width, rngs)
        if self.gated:
            self.gate = linear(model, model.width, model.mlp_width, rngs)
        self.down = output_linear(model, model.mlp_width, rngs)

    def __call__(self, normed_BTD: jax.Array) -> jax.Array:
        up_BTF = self.up(normed_BTD)
        hidden_BTF = jax.nn.silu(self.gate(normed_BTD)) * up_BTF if self.gated else jax.nn.gelu(up_BTF)
        return self.down(hidden_BTF)
