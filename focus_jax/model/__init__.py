"""The decoder: embeddings, norms, MLP, rotary positions, attention layer, router, block, head.

Letters: B batch, T tokens, D model width, H query heads, J key/value heads, C channels of a head, F MLP width,
V vocabulary, K groups, P probe rows, R routing width.
"""

from focus_jax.model.decoder import Decoder, focus_layers, parameter_count, vocabulary_logits
from focus_jax.model.mixing import attention_implementations, computed_pairs
from focus_jax.model.reading import Reading, as_trained
from focus_jax.model.router import Carried, Routed

__all__ = [
    "Carried",
    "Decoder",
    "Reading",
    "Routed",
    "as_trained",
    "attention_implementations",
    "computed_pairs",
    "focus_layers",
    "parameter_count",
    "vocabulary_logits",
]
