"""The decoder-only transformer, pre-norm, with dense or Focus attention."""

import math

import jax
import jax.numpy as jnp
from flax import nnx

from focus_jax import config
from focus_jax.errors import UserError
from focus_jax.model.attention import Attention
from focus_jax.model.layers import MLP, head, norm
from focus_jax.model.reading import Reading
from focus_jax.model.rotary import Rotation, rotation
from focus_jax.model.router import Routed
from focus_jax.model.stack import run_blocks
from focus_jax.ops.platform import target_platform
from focus_jax.parallel.axes import constrained


class Block(nnx.Module):
    def __init__(self, model: config.Model, focus: config.Focus | None, rngs: nnx.Rngs):
        self.attention_norm = norm(model, rngs)
        self.attention = Attention(model, focus, rngs)
        self.mlp_norm = norm(model, rngs)
        self.mlp = MLP(model, rngs)

    def __call__(
        self, residual_BTD: jax.Array, by: Rotation | None, reading: Reading | None, probes_BP: jax.Array | None
    ) -> tuple[jax.Array, Routed | None]:
        mixed_BTD, routed = self.attention(self.attention_norm(residual_BTD), by, reading, probes_BP)
        residual_BTD = residual_stream(residual_BTD + mixed_BTD)
        return residual_stream(residual_BTD + self.mlp(self.mlp_norm(residual_BTD))), routed


class Decoder(nnx.Module):
    """Initial values come from two streams of `rngs`: `router` for routers and `params` for everything else, so a
    Focus model and its dense twin start from the same values."""

    def __init__(self, run: config.Config, rngs: nnx.Rngs):
        model = run.model
        self.model = model
        self.training = run.training
        self.kinds = tuple(focus_of(run, layer) for layer in range(model.layers))
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
                run.training.sequence_length,
                model.width,
                embedding_init=nnx.initializers.normal(model.position_init_std),
                embedding_metadata={"axes": ("positions", "width")},
                dtype=dtype,
                rngs=rngs,
            )
        self.blocks = nnx.List(Block(model, focus, rngs) for focus in self.kinds)
        self.final_norm = norm(model, rngs)
        if not model.tied_embeddings:
            self.head = head(model, rows, rngs)

    def __call__(self, tokens_BT: jax.Array, reading: Reading | None) -> tuple[jax.Array, tuple[Routed, ...]]:
        """Returns float32 logits_BTV (padded vocabulary at −∞: neither loss nor sampling can pick it) and what the
        router of every Focus layer, in order, made of the tokens. A dense model takes None for `reading`."""
        normed_BTD, layers = self.features(tokens_BT, reading)
        return vocabulary_logits(normed_BTD, self.output_matrix_DV(), self.model.vocab_size), layers

    def features(
        self, tokens_BT: jax.Array, reading: Reading | None, probes_BP: jax.Array | None = None
    ) -> tuple[jax.Array, tuple[Routed, ...]]:
        """What the logits are made of, normed_BTD in the compute dtype, and what the routers made of the tokens.

        probes_BP: positions of the rows that attend densely in every Focus layer, to teach its router; None where
            routers do not learn from probes.
        """
        residual_BTD, by = self.embed(tokens_BT)
        residual_BTD, layers = run_blocks(
            self.blocks,
            self.kinds,
            residual_stream(residual_BTD),
            lambda block, residual_BTD: block(residual_BTD, by, reading, probes_BP),
            self.training,
            jnp.dtype(self.model.compute_dtype),
        )
        return self.final_norm(residual_BTD), tuple(routed for routed in layers if routed is not None)

    def output_matrix_DV(self) -> jax.Array:
        """From the last norm to the logits, float32; V is padded."""
        return self.embedding.embedding[...].T if self.model.tied_embeddings else self.head.kernel[...]

    def embed(self, tokens_BT: jax.Array) -> tuple[jax.Array, Rotation | None]:
        """What the first block reads, and the rotation of queries and keys where positions are rotary."""
        tokens = tokens_BT.shape[1]
        if self.model.positions == "rotary":
            by = rotation(tokens, self.model.width // self.model.heads, self.model.rope_theta)
            return self.embedding(tokens_BT), by
        if tokens > self.training.sequence_length:
            raise UserError(
                f"model.positions: the {self.training.sequence_length} learned positions do not reach {tokens} tokens; "
                'read at most that many, or train with positions="rotary"'
            )
        return self.embedding(tokens_BT) + self.position_embedding(jnp.arange(tokens)), None


def vocabulary_logits(normed_BTD: jax.Array, matrix_DV: jax.Array, vocab_size: int) -> jax.Array:
    """Float32 logits from a product in the dtype of `normed_BTD`, −∞ from token `vocab_size` on."""
    logits_BTV = jnp.matmul(normed_BTD, matrix_DV.astype(normed_BTD.dtype), preferred_element_type=jnp.float32)
    return jnp.where(jnp.arange(matrix_DV.shape[1]) < vocab_size, logits_BTV, -jnp.inf)


def residual_stream(residual_BTD: jax.Array) -> jax.Array:
    """As all its readers find it: laid out on the mesh, and computed once."""
    residual_BTD = constrained(residual_BTD, "batch", "tokens", "residual")
    # On a CPU every reader, also of the gradient, would otherwise sum up the layers before it once more for itself.
    return jax.lax.optimization_barrier(residual_BTD) if target_platform() == "cpu" else residual_BTD


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
