"""The attention functions of focus_jax.ops on a mesh: every device computes its own sequences and its own heads, and
needs nothing of the others. Without a mesh they are the functions themselves.

Letters as in ops/attention.py.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

import jax

from focus_jax import ops
from focus_jax.parallel.axes import spec
from focus_jax.parallel.mesh import TENSOR

PER_HEAD = spec(("batch", "tokens", "heads"))
PER_TOKEN = spec(("batch",))


def _over_batch_and_heads(attend: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    @wraps(attend)
    def sharded(*arrays: jax.Array, **options: Any) -> jax.Array:
        if jax.sharding.get_abstract_mesh().empty:
            return attend(*arrays, **options)
        gates = {name: option for name, option in options.items() if isinstance(option, jax.Array)}
        rest = {name: option for name, option in options.items() if name not in gates}

        def local(arrays: tuple[jax.Array, ...], gates: dict[str, jax.Array]) -> jax.Array:
            return attend(*arrays, **gates, **rest)

        # Queries, keys and values come first; what follows is of tokens, the same for all heads.
        specs = tuple(PER_HEAD if number < 3 else PER_TOKEN for number in range(len(arrays)))
        # The check of replication rejects custom_vjp.
        return jax.shard_map(local, in_specs=(specs, PER_TOKEN), out_specs=PER_HEAD, check_vma=False)(arrays, gates)

    return sharded


dense_attention = _over_batch_and_heads(ops.dense_attention)
gated_attention = _over_batch_and_heads(ops.gated_attention)
routed_attention = _over_batch_and_heads(ops.routed_attention)


def probe_attention(
    q_BTHC: jax.Array, k_BSJC: jax.Array, v_BSJC: jax.Array, positions_BP: jax.Array, **options: Any
) -> tuple[jax.Array, jax.Array]:
    """What the rows attend to is a mean over all heads, those of other devices too."""
    if jax.sharding.get_abstract_mesh().empty:
        return ops.probe_attention(q_BTHC, k_BSJC, v_BSJC, positions_BP, **options)

    def local(*arrays: jax.Array) -> tuple[jax.Array, jax.Array]:
        o_BPHC, attention_BPS = ops.probe_attention(*arrays, **options)
        return o_BPHC, jax.lax.pmean(attention_BPS, TENSOR)

    specs = PER_HEAD, PER_HEAD, PER_HEAD, PER_TOKEN
    return jax.shard_map(local, in_specs=specs, out_specs=(PER_HEAD, PER_TOKEN), check_vma=False)(
        q_BTHC, k_BSJC, v_BSJC, positions_BP
    )
