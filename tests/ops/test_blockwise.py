"""Blockwise attention against the float32 definition: outputs and all gradients, memory, repeatability."""

from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from focus_jax.ops import dense_attention, gated_attention, routed_attention
from tests.ops.pallas.calls import CALLS, Call

UNEVEN_CALL = Call(
    name="routed, a number of blocks that is no multiple of those taken together", T=1000, S=1000, B=1, K=3
)

MORE_CALLS = tuple(
    call
    for call in CALLS
    if call.name
    in (
        "dense, more queries than keys",
        "routed, 64 groups, many shared",
        "routed, late queries, query gate",
        "routed, one group, wide window",
        "routed, all groups, some see nothing",
        "routed, window reaches everything",
    )
)
"""Every one takes some seconds to compile; Pallas kernels are held to all of them in `make test`."""
QUICK_CALLS = (*(call for call in CALLS if call not in MORE_CALLS), UNEVEN_CALL)

LONG_CALLS = (
    Call(name="dense, many blocks", T=1100, S=1100, H=4, B=1),
    Call(name="routed, many blocks, two groups, gates", T=1500, S=1500, C=64, B=1, K=3, M=2, window=130, gates="qk"),
    Call(name="routed, many blocks, shared groups", T=1100, S=1100, B=1, K=3, M=2, N=2, window=40),
    Call(name="routed, window of many blocks", T=1500, S=1500, H=4, B=1, K=2, window=700),
    Call(name="routed, window of many steps", T=700, S=1000, H=16, J=4, B=1, query_offset=300, K=2, window=400),
    Call(name="routed, late queries far from their window", T=300, S=1500, B=1, query_offset=1000, K=2, window=60),
    Call(name="routed, most groups", T=600, S=600, B=1, K=64, window=3),
    Call(name="routed, widest heads", T=300, S=300, C=256, B=1, K=2, window=30),
)


@dataclass(frozen=True, kw_only=True)
class GatedCall(Call):
    """A call of gated_attention, K affinities a token."""

    gate: str = "log"
    one_hot: bool = False

    def arguments(self) -> dict[str, jax.Array]:
        rng = np.random.default_rng(len(self.name))
        arrays = {
            "q_BTHC": rng.normal(size=(self.B, self.T, self.H, self.C)),
            "k_BSJC": rng.normal(size=(self.B, self.S, self.J, self.C)),
            "v_BSJC": rng.normal(size=(self.B, self.S, self.J, self.C)),
        }
        for name in ("k_BSJC", "v_BSJC"):
            arrays[name][:, self.query_offset + self.T :] = np.nan
        affinities = {}
        for name, length in (("query_affinity_BTK", self.T), ("key_affinity_BSK", self.S)):
            scores = rng.normal(size=(self.B, length, self.K))
            affinities[name] = np.eye(self.K)[scores.argmax(axis=-1)] if self.one_hot else np.exp(scores) / self.K
        return {name: jnp.asarray(array, self.dtype) for name, array in arrays.items()} | {
            name: jnp.asarray(array, jnp.float32) for name, array in affinities.items()
        }

    def differentiable(self) -> tuple[str, ...]:
        return ("q_BTHC", "k_BSJC", "v_BSJC", "query_affinity_BTK", "key_affinity_BSK")

    def run(self, arguments: dict[str, jax.Array], implementation: str) -> jax.Array:
        return gated_attention(
            **arguments,
            window=self.window,
            gate=self.gate,
            slope=3.0,
            query_offset=self.query_offset,
            scale=self.scale,
            implementation=implementation,
        )


GATED_CALLS = (
    GatedCall(name="gated, log, odd length, grouped heads", T=100, S=100, H=4, C=40, K=4),
    GatedCall(name="gated, sigmoid, many blocks", T=700, S=700, B=1, K=8, window=30, gate="sigmoid"),
    GatedCall(name="gated, log, one-hot affinities: gradients at x = 0", T=300, S=300, B=1, K=3, one_hot=True),
    GatedCall(name="gated, log, late queries, unread tail", T=50, S=130, query_offset=60, K=4, window=0),
    GatedCall(name="gated, sigmoid, window reaches everything", T=70, S=70, K=4, window=1000, gate="sigmoid"),
    GatedCall(name="gated, log, bfloat16", C=64, K=4, dtype="bfloat16"),
)


@pytest.mark.parametrize("call", [*QUICK_CALLS, *GATED_CALLS], ids=lambda call: call.name)
def test_equals_definition(call: Call):
    call.check("blockwise")


@pytest.mark.slow
@pytest.mark.parametrize("call", MORE_CALLS, ids=lambda call: call.name)
def test_equals_definition_in_further_cases(call: Call):
    call.check("blockwise")


@pytest.mark.slow
@pytest.mark.parametrize("call", LONG_CALLS, ids=lambda call: call.name)
def test_equals_definition_over_many_blocks(call: Call):
    call.check("blockwise")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(30))
def test_equals_definition_for_random_shapes(seed: int):
    rng = np.random.default_rng(seed)
    K, J = int(rng.choice([1, 2, 5, 33, 64])), int(rng.choice([1, 2]))
    M = int(rng.integers(0, min(K, 6) + 1))
    N = M if M and rng.random() < 0.4 else 1
    call = Call(
        name="r" * seed,
        T=int(rng.integers(1, 400)),
        S=int(rng.integers(1, 400)),
        H=J * int(rng.choice([1, 3])),
        J=J,
        C=int(rng.choice([32, 48, 128])),
        query_offset=int(rng.choice([0, rng.integers(0, 300)])),
        K=K,
        M=M,
        N=N,
        window=int(rng.choice([0, 7, 64, 200, 500])),
        skewed=bool(rng.random() < 0.3),
        gates=str(rng.choice(["", "q", "k", "qk"])) if N == 1 else "",
    )
    call.check("blockwise")


def test_repeated_groups_count_once():
    call = Call(name="repeated", T=90, S=90, K=4, M=1, window=8)
    arguments = call.arguments()
    groups_BT1 = arguments["query_groups_BTM"]
    twice = arguments | {"query_groups_BTM": jnp.concatenate([groups_BT1, groups_BT1], axis=2)}
    run = jax.jit(partial(call.run, implementation="blockwise"))
    np.testing.assert_allclose(run(twice), run(arguments), atol=2e-6, rtol=0)


def test_published_split_of_pairs_gives_the_same():
    """arXiv 2604.03260 computes pairs of one group, and pairs of other groups inside the window, and merges them."""
    call = Call(name="published", T=120, S=120, K=4, window=16, grouped=True)
    arguments = call.arguments()
    q, k, v = (np.asarray(arguments[name], np.float64) for name in ("q_BTHC", "k_BSJC", "v_BSJC"))
    groups_BT, positions = np.asarray(arguments["query_groups_BTM"])[..., 0], np.arange(call.T)
    same_BTS = (groups_BT[:, :, None] == groups_BT[:, None, :]) & (groups_BT >= 0)[:, :, None]
    distance_TS = positions[:, None] - positions
    logits_BHTS = np.einsum("bthc,bshc->bhts", q, k) * call.C**-0.5
    parts = []
    for pairs_BTS in (same_BTS & (distance_TS >= 0), ~same_BTS & (distance_TS >= 0) & (distance_TS <= call.window)):
        mass_BHTS = np.where(pairs_BTS[:, None], np.exp(logits_BHTS), 0.0)
        parts.append((np.einsum("bhts,bshc->bthc", mass_BHTS, v), mass_BHTS.sum(axis=3).swapaxes(1, 2)[..., None]))
    merged_BTHC = sum(values for values, _ in parts) / sum(mass for _, mass in parts)
    o_BTHC = jax.jit(partial(call.run, implementation="blockwise"))(arguments)
    np.testing.assert_allclose(o_BTHC, merged_BTHC, atol=2e-6, rtol=0)


def test_is_repeatable_bit_for_bit():
    call = Call(name="repeatable", T=700, S=700, B=1, K=4, M=2, window=40, gates="qk")
    arguments = call.arguments()
    do = arguments["q_BTHC"]
    run = jax.jit(partial(call.run_with_gradients, implementation="blockwise"))
    first, second = run(arguments, do), run(arguments, do)
    for name, array in first.items():
        np.testing.assert_array_equal(array, second[name], err_msg=name)


def temporary_bytes(operation: str, T: int, with_gradient: bool) -> float:
    """Of the compiled program, 4 heads × 64, as a multiple of the bytes of q, k, v and o."""
    q_BTHC = jax.ShapeDtypeStruct((1, T, 4, 64), jnp.float32)
    groups_BT1, groups_BT2 = (jax.ShapeDtypeStruct((1, T, count), jnp.int32) for count in (1, 2))
    affinity_BTK = jax.ShapeDtypeStruct((1, T, 8), jnp.float32)
    attention, routing = {
        "dense": (dense_attention, ()),
        "gated": (partial(gated_attention, window=128), (affinity_BTK, affinity_BTK)),
        "routed": (partial(routed_attention, num_groups=8, window=128), (groups_BT1, groups_BT1)),
        "routed, M = 2": (partial(routed_attention, num_groups=8, window=128), (groups_BT2, groups_BT1)),
    }[operation]

    def run(qkv: tuple, do: jax.Array, routing: tuple):
        o, pull = jax.vjp(lambda *qkv: attention(*qkv, *routing, implementation="blockwise"), *qkv)
        return (o, pull(do)) if with_gradient else o

    compiled = jax.jit(run).lower((q_BTHC,) * 3, q_BTHC, routing).compile()
    return compiled.memory_analysis().temp_size_in_bytes / (4 * 4 * q_BTHC.size)


def check_memory(operation: str, with_gradient: bool, lengths: tuple[int, ...]) -> None:
    multiples = [temporary_bytes(operation, T, with_gradient) for T in lengths]
    assert max(multiples) <= 12
    for shorter, longer in pairwise(multiples):
        assert 2 * longer / shorter <= 2.2


def test_memory_is_linear():
    check_memory("routed", True, (8192, 16384))


@pytest.mark.slow
@pytest.mark.parametrize("operation", ["dense", "gated", "routed", "routed, M = 2"])
@pytest.mark.parametrize("with_gradient", [False, True])
def test_memory_is_linear_to_32k(operation: str, with_gradient: bool):
    check_memory(operation, with_gradient, (8192, 16384, 32768))
