"""Arguments, the choice of an implementation, and the definition against loops over pairs."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from focus_jax.ops import dense_attention, gated_attention, resolve, routed_attention

B, T, H, J, C, K, M = 1, 9, 4, 2, 8, 3, 2


def arrays() -> dict[str, jax.Array]:
    rng = np.random.default_rng(0)
    return {
        "q_BTHC": jnp.asarray(rng.normal(size=(B, T, H, C)), jnp.float32),
        "k_BSJC": jnp.asarray(rng.normal(size=(B, T, J, C)), jnp.float32),
        "v_BSJC": jnp.asarray(rng.normal(size=(B, T, J, C)), jnp.float32),
    }


def groups() -> dict[str, jax.Array]:
    rng = np.random.default_rng(1)
    return {
        "query_groups_BTM": jnp.asarray(rng.integers(-1, K, (B, T, M)), jnp.int32),
        "key_groups_BSN": jnp.asarray(rng.integers(-1, K, (B, T, 1)), jnp.int32),
    }


def gates() -> dict[str, jax.Array]:
    rng = np.random.default_rng(2)
    return {
        "query_gate_BTM": jnp.asarray(rng.normal(size=(B, T, M)), jnp.float32),
        "key_gate_BS": jnp.asarray(rng.normal(size=(B, T)), jnp.float32),
    }


def affinities() -> dict[str, jax.Array]:
    rng = np.random.default_rng(3)
    return {
        "query_affinity_BTK": jnp.asarray(rng.random((B, T, K)), jnp.float32),
        "key_affinity_BSK": jnp.asarray(rng.random((B, T, K)), jnp.float32),
    }


def by_loops(logit_of_pair) -> np.ndarray:
    """Softmax over the pairs whose logit, given i, j and scale · q·k, is not None."""
    q, k, v = (np.asarray(array, np.float64)[0] for array in arrays().values())
    o_BTHC = np.zeros((B, T, H, C))
    for i in range(T):
        for head in range(H):
            weights = {}
            for j in range(i + 1):
                logit = logit_of_pair(i, j, q[i, head] @ k[j, head // (H // J)] / math.sqrt(C))
                if logit is not None:
                    weights[j] = math.exp(logit)
            for j, weight in weights.items():
                o_BTHC[0, i, head] += weight / sum(weights.values()) * v[j, head // (H // J)]
    return o_BTHC


def test_definition_of_dense():
    o_BTHC = dense_attention(**arrays(), implementation="reference")
    np.testing.assert_allclose(o_BTHC, by_loops(lambda i, j, s: s), atol=2e-6, rtol=0)


@pytest.mark.parametrize("gate", ["log", "sigmoid"])
def test_definition_of_gated(gate: str):
    query_TK, key_SK = (np.asarray(array)[0] for array in affinities().values())

    def logit(i: int, j: int, s: float) -> float:
        x = float(query_TK[i] @ key_SK[j])
        if i - j <= 2:
            return s
        return s + math.log(x) if gate == "log" else s / (1 + math.exp(-1.5 * x))

    o_BTHC = gated_attention(**arrays(), **affinities(), window=2, gate=gate, slope=1.5, implementation="reference")
    np.testing.assert_allclose(o_BTHC, by_loops(logit), atol=2e-6, rtol=0)


def test_definition_of_routed():
    query_TM, key_S = np.asarray(groups()["query_groups_BTM"])[0], np.asarray(groups()["key_groups_BSN"])[0, :, 0]
    query_gate_TM, key_gate_S = (np.asarray(gate)[0] for gate in gates().values())

    def logit(i: int, j: int, s: float) -> float | None:
        if i - j <= 2:
            return s
        for m, group in enumerate(query_TM[i]):
            if group == key_S[j] and group >= 0:
                return s + query_gate_TM[i, m] + key_gate_S[j]
        return None

    options = {"num_groups": K, "window": 2, "implementation": "reference"}
    o_BTHC = routed_attention(**arrays(), **groups(), **gates(), **options)
    np.testing.assert_allclose(o_BTHC, by_loops(logit), atol=2e-6, rtol=0)


def test_auto_is_the_kernels_on_a_gpu_and_blockwise_elsewhere():
    chosen = {platform: resolve("routed", platform=platform) for platform in ("cpu", "gpu", "tpu")}
    assert chosen == {"cpu": "blockwise", "gpu": "pallas", "tpu": "blockwise"}
    assert resolve("gated", platform="gpu") == "blockwise"
    assert resolve("dense", "cudnn", platform="gpu") == "cudnn"


dense = partial(dense_attention, **arrays())
gated = partial(gated_attention, **arrays(), **affinities(), window=2)
routed = partial(routed_attention, **arrays(), **groups(), num_groups=K, window=2)


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("q_BTHC", lambda: dense(q_BTHC=jnp.ones((T, H, C)))),
        ("q_BTHC", lambda: dense(q_BTHC=jnp.ones((B, T, H, C), int))),
        ("q_BTHC", lambda: dense(q_BTHC=jnp.ones((B, 0, H, C)))),
        ("k_BSJC", lambda: dense(k_BSJC=jnp.ones((B, T, 3, C)), v_BSJC=jnp.ones((B, T, 3, C)))),
        ("k_BSJC", lambda: dense(k_BSJC=jnp.ones((B + 1, T, J, C)))),
        ("k_BSJC", lambda: dense(k_BSJC=jnp.ones((B, T, J, C), jnp.bfloat16))),
        ("v_BSJC", lambda: dense(v_BSJC=jnp.ones((B, T, J, C + 1)))),
        ("query_offset", lambda: dense(query_offset=-1)),
        ("query_offset", lambda: dense(query_offset=1.5)),
        ("scale", lambda: dense(scale=math.nan)),
        ("implementation", lambda: dense(implementation="flash")),
        ("implementation", lambda: gated(implementation="pallas")),
        ("window", lambda: gated(window=-1)),
        ("gate", lambda: gated(gate="tanh")),
        ("slope", lambda: gated(gate="sigmoid", slope=0.0)),
        ("query_affinity_BTK", lambda: gated(query_affinity_BTK=jnp.ones((B, T + 1, K)))),
        ("key_affinity_BSK", lambda: gated(key_affinity_BSK=jnp.ones((B, T, K + 1)))),
        ("key_affinity_BSK", lambda: gated(key_affinity_BSK=jnp.ones((B, T, K), jnp.bfloat16))),
        ("num_groups", lambda: routed(num_groups=65)),
        ("num_groups", lambda: routed(num_groups=0)),
        ("window", lambda: routed(window="128")),
        ("query_groups_BTM", lambda: routed(query_groups_BTM=jnp.zeros((B, T, K + 1), jnp.int32))),
        ("query_groups_BTM", lambda: routed(query_groups_BTM=jnp.zeros((B, T, M)))),
        ("key_groups_BSN", lambda: routed(key_groups_BSN=jnp.zeros((B, T + 1, 1), jnp.int32))),
        ("query_gate_BTM", lambda: routed(query_gate_BTM=jnp.zeros((B, T, M + 1)))),
        ("key_gate_BS", lambda: routed(key_gate_BS=jnp.zeros((B, T)), key_groups_BSN=jnp.zeros((B, T, 2), jnp.int32))),
    ],
)
def test_bad_arguments_are_named(name: str, call):
    with pytest.raises(ValueError, match=f"^{name}: "):
        call()


def test_cudnn_says_what_it_cannot_do():
    with pytest.raises(NotImplementedError, match="float32"):
        dense(implementation="cudnn")
