"""FLOPs of a training token: forward and backward, without anything that is computed again to save memory.

Letters as in focus_jax.config. A weight costs 6 FLOPs per token that it is multiplied with (2 forward, 4 backward), a
pair of attention 12 per channel of every head (4 forward, 8 backward). Lookups, norms and activations are not counted.
"""

import math

from focus_jax.accounting import pairs
from focus_jax.config import Config, Dense, Focus, Model

PER_WEIGHT = 6


def dense_equivalent(run: Config) -> float:
    """Of the dense twin: what model FLOP utilisation (`mfu`) is about, whatever attention is run."""
    return PER_WEIGHT * _weights(run.model) + _dense_attention(run)


def executed(run: Config, kept_fraction: float) -> float:
    """Of the model itself. kept_fraction: pairs that are computed / dense pairs, mean over all layers."""
    routers = PER_WEIGHT * _router_weights(run)
    return PER_WEIGHT * _weights(run.model) + routers + kept_fraction * _dense_attention(run)


def even_fraction(run: Config) -> float:
    """Kept fraction of training where all groups are equally large; 1 where every pair is computed."""
    focus, tokens = run.attention, run.training.sequence_length
    if isinstance(focus, Dense) or focus.training == "soft":
        return 1.0
    joined = pairs.joined_share(focus.groups, focus.top_k, focus.membership)
    kept = pairs.kept_fraction(tokens, focus.window, joined)
    if focus.router == "distill":
        # A row reads (T + 1)/2 keys on average.
        kept += focus.probes / tokens
    sparse = len(_focus_layers(run, focus)) / run.model.layers
    return 1 - sparse * (1 - kept)


def padded_vocabulary(model: Model) -> int:
    return math.ceil(model.vocab_size / model.vocab_multiple) * model.vocab_multiple


def _weights(model: Model) -> int:
    """That every token is multiplied with: the blocks' matrices and the (padded) head, tied or not."""
    head_width = model.width // model.heads
    attention = model.width * head_width * (2 * model.heads + 2 * model.kv_heads)
    mlp = model.width * model.mlp_width * (3 if model.mlp == "swiglu" else 2)
    return model.layers * (attention + mlp) + model.width * padded_vocabulary(model)


def _router_weights(run: Config) -> int:
    focus = run.attention
    if isinstance(focus, Dense):
        return 0
    return len(_focus_layers(run, focus)) * focus.routing_width * (run.model.width + focus.groups)


def _dense_attention(run: Config) -> float:
    """Of all layers, per token."""
    pairs_per_token = pairs.dense_pairs(run.training.sequence_length) / run.training.sequence_length
    return run.model.layers * pairs.FORWARD_AND_BACKWARD * run.model.width * pairs_per_token


def _focus_layers(run: Config, focus: Focus) -> list[int]:
    return [layer for layer in range(run.model.layers) if layer not in focus.dense_layers]
