"""Bytes that a training step cannot do without, by arithmetic. What a compiler makes of it differs (focus_jax.plan)."""

from focus_jax.accounting.flops import padded_vocabulary
from focus_jax.config import Config, Model

FLOAT32 = 4


def activation_bytes(run: Config, *, batch_shards: int, tensor_shards: int) -> int:
    """Of one device: what the blocks keep for the backward pass, and the larger of one block's work and one chunk of
    logits. The batch is divided among `batch_shards` devices, heads, MLP and vocabulary among `tensor_shards`."""
    model, training = run.model, run.training
    size = _itemsize(model)
    tokens = training.batch_size // training.microbatches // batch_shards * training.sequence_length
    of_attention, of_products, of_the_rest = _block_bytes(model, tensor_shards)
    kept = {
        "full": 0,
        "attention": of_attention,
        "dots": of_attention + of_products,
        "none": of_attention + of_products + of_the_rest,
    }[training.remat]
    at_work = 2 * tokens * (of_attention + of_products + of_the_rest)
    logits = tokens // training.loss_chunks * padded_vocabulary(model) // tensor_shards * (FLOAT32 + size)
    return tokens * model.layers * (model.width * size + kept) + max(at_work, logits)


def _block_bytes(model: Model, tensor_shards: int) -> tuple[int, int, int]:
    """Per token: attention's output and log-sum-exp; results of matrix products; norms, activation and residuals."""
    size = _itemsize(model)
    head_width = model.width // model.heads
    queries = model.heads * head_width // tensor_shards
    keys_and_values = 2 * model.kv_heads * head_width // tensor_shards
    hidden = model.mlp_width // tensor_shards
    attention = queries * size + model.heads // tensor_shards * FLOAT32
    products = (model.width + queries + keys_and_values + hidden * (2 if model.mlp == "swiglu" else 1)) * size
    rest = (4 * model.width + 2 * hidden) * size + 2 * model.width * FLOAT32
    return attention, products, rest


def _itemsize(model: Model) -> int:
    return 2 if model.compute_dtype == "bfloat16" else FLOAT32
