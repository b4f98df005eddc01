import jax
import jax.numpy as jnp
import numpy as np
import pytest

from focus_jax import routing
from focus_jax.accounting.pairs import dense_pairs


def affinities(seed: int, batch: int, tokens: int, groups: int) -> jax.Array:
    return jax.nn.log_softmax(jax.random.normal(jax.random.key(seed), (batch, tokens, groups)))


def test_of_equal_affinities_the_lower_group_comes_first():
    log_affinity_BTK = jnp.log(jnp.array([[[0.25, 0.25, 0.25, 0.25], [0.1, 0.4, 0.1, 0.4]]]))
    membership = routing.memberships(log_affinity_BTK, top_k=3, kind="query")
    np.testing.assert_array_equal(membership.query_groups_BTM[0], [[0, 1, 2], [1, 3, 0]])
    np.testing.assert_array_equal(membership.key_groups_BSN[0], [[0], [1]])


def test_shared_membership_gives_both_sides_the_same_sets():
    membership = routing.memberships(affinities(0, 2, 20, 5), top_k=2, kind="shared")
    np.testing.assert_array_equal(membership.query_groups_BTM, membership.key_groups_BSN)


def test_gates_are_the_log_affinities_of_the_joining_groups():
    log_affinity_BTK = affinities(1, 2, 10, 4)
    membership = routing.memberships(log_affinity_BTK, top_k=2, kind="query")
    query_gate_BTM, key_gate_BS = routing.gates(log_affinity_BTK, membership)
    for b in range(2):
        for t in range(10):
            for m in range(2):
                assert query_gate_BTM[b, t, m] == log_affinity_BTK[b, t, membership.query_groups_BTM[b, t, m]]
            assert key_gate_BS[b, t] == log_affinity_BTK[b, t, membership.key_groups_BSN[b, t, 0]]


@pytest.mark.parametrize("kind", ["query", "shared"])
@pytest.mark.parametrize("top_k", [0, 1, 2, 4])
@pytest.mark.parametrize(("tokens", "window"), [(1, 3), (63, 0), (100, 7), (300, 16), (40, 100)])
def test_kept_pairs_are_counted_exactly(kind, top_k, tokens, window):
    membership = routing.memberships(affinities(2, 2, tokens, 4), top_k=top_k, kind=kind)
    queries, keys = ([list(map(set, sequence)) for sequence in groups.tolist()] for groups in membership)
    expected = [
        sum(i - j <= window or bool(query[i] & key[j]) for i in range(tokens) for j in range(i + 1))
        for query, key in zip(queries, keys, strict=True)
    ]
    found_B = routing.kept_pairs(membership, num_groups=4, window=window)
    np.testing.assert_array_equal(found_B, expected)


def test_reading_every_group_keeps_every_pair():
    membership = routing.memberships(affinities(3, 1, 500, 4), top_k=4, kind="query")
    assert routing.kept_pairs(membership, num_groups=4, window=2)[0] == dense_pairs(500)


def test_group_statistics_of_a_known_batch():
    affinity_BTK = jnp.array([[[0.7, 0.3], [0.6, 0.4], [0.2, 0.8], [0.9, 0.1]]])
    statistics = routing.group_statistics(jnp.log(affinity_BTK))
    np.testing.assert_allclose(statistics.load_BK, [[0.75, 0.25]])
    np.testing.assert_allclose(statistics.dominance_B, [0.75])
    np.testing.assert_allclose(statistics.confidence_B, [0.75], rtol=1e-6)
    entropy = -(affinity_BTK * jnp.log(affinity_BTK)).sum(-1).mean()
    np.testing.assert_allclose(statistics.entropy_B, [entropy], rtol=1e-6)
