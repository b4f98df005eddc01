"""The decoder-only transformer, pre-norm, with dense or Focus attention."""

import math

import jax
import jax.numpy as jnp
from flax import nnx

from focus_jax import config
from focus_jax.errors import UserError
from focus_jax.model.attention import Attention
from focus_jax.model.layers import MLP, head, norm
from focus_jax.model.reading import AS_TRAINED, Reading
from focus_jax.model.rotary import Rotation, rotation
from focus_jax.parallel.axes import constrained


class Block(nnx.Module):
    def __init__(self, model: config.Model, focus: config.Focus | None, rngs: nnx.Rngs):
        self.attention_norm = norm(model, rngs)
        self.attention = Attention(model, focus, rngs)
        self.mlp_norm = norm(model, rngs)
        self.mlp = MLP(model, rngs)

    def __call__(
        self, residual_BTD: jax.Array, by: Rotation | None, reading: Reading
    ) -> tuple[jax.Array, jax.Array | None]:
        mixed_BTD, log_affinity_BTK = self.attention(self.attention_norm(residual_BTD), by, reading)
        residual_BTD = on_mesh(residual_BTD + mixed_BTD)
        return on_mesh(residual_BTD + self.mlp(self.mlp_norm(residual_BTD))), log_affinity_BTK


class Decoder(nnx.Module):
    """Initial values come from two streams of `rngs`: `router` for routers and `params` for everything else, so a
    Focus model and its dense twin start from the same values."""

    def __init__(self, run: config.Config, rngs: nnx.Rngs):
        model = run.model
        self.model = model
        self.positions = run.training.sequence_length
        dtype = jnp.dtype(model.compute_dtype)
        rows = math.ceil(model.vocab_size / model.vocab_multiple) * model.vocab_multiple
        self.embedding = nnx.Embed(
            rows,
            model.width,
            embedding_init=nnx.initializers.normal(model.init_std),
            embedding_metadata={"axes": ("vocab", "width")},
            dtype=dtype,
            rngs=rngs,
        )
        if model.positions == "learned":
            self.position_embedding = nnx.Embed(
                self.positions,
                model.width,
                embedding_init=nnx.initializers.normal(model.position_init_std),
                embedding_metadata={"axes": ("positions", "width")},
                dtype=dtype,
                rngs=rngs,
            )
        self.blocks = nnx.List(Block(model, focus_of(run, layer), rngs) for layer in range(model.layers))
        self.final_norm = norm(model, rngs)
        if not model.tied_embeddings:
            self.head = head(model, rows, rngs)

    def __call__(self, tokens_BT: jax.Array, reading: Reading = AS_TRAINED) -> tuple[jax.Array, tuple[jax.Array, ...]]:
        """Returns float32 logits_BTV (padded vocabulary at −∞: neither loss nor sampling can pick it) and, for every
        Focus layer in order, its tokens' log affinity_BTK."""
        residual_BTD, by = self._embed(tokens_BT)
        residual_BTD = on_mesh(residual_BTD)
        affinities = []
        for block in self.blocks:
            residual_BTD, log_affinity_BTK = block(residual_BTD, by, reading)
            if log_affinity_BTK is not None:
                affinities.append(log_affinity_BTK)
        return self._logits(self.final_norm(residual_BTD)), tuple(affinities)

    def _embed(self, tokens_BT: jax.Array) -> tuple[jax.Array, Rotation | None]:
        tokens = tokens_BT.shape[1]
        if self.model.positions == "rotary":
            by = rotation(tokens, self.model.width // self.model.heads, self.model.rope_theta)
            return self.embedding(tokens_BT), by
        if tokens > self.positions:
            raise UserError(
                f"model.positions: the {self.positions} learned positions do not reach {tokens} tokens; "
                'read at most that many, or train with positions="rotary"'
            )
        return self.embedding(tokens_BT) + self.position_embedding(jnp.arange(tokens)), None

    def _logits(self, normed_BTD: jax.Array) -> jax.Array:
        logits_BTV = self.embedding.attend(normed_BTD) if self.model.tied_embeddings else self.head(normed_BTD)
        is_token_V = jnp.arange(logits_BTV.shape[-1]) < self.model.vocab_size
        return jnp.where(is_token_V, logits_BTV.astype(jnp.float32), -jnp.inf)


def on_mesh(residual_BTD: jax.Array) -> jax.Array:
    return constrained(residual_BTD, "batch", "tokens", "residual")


def focus_of(run: config.Config, layer: int) -> config.Focus | None:
    """What the layer's attention is built from, None for a dense one."""
    if isinstance(run.attention, config.Dense) or layer in run.attention.dense_layers:
        return None
    return run.attention


def focus_layers(run: config.Config) -> tuple[int, ...]:
    """Layers with Focus attention, in the order in which a Decoder returns their affinities."""
    return tuple(layer for layer in range(run.model.layers) if focus_of(run, layer) is not None)


def parameter_count(run: config.Config) -> int:
    """Parameters of the model, by shapes alone."""
    abstract = nnx.eval_shape(lambda: Decoder(run, nnx.Rngs(0)))
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(nnx.state(abstract, nnx.Param)))
