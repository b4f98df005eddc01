"""The decoder's promises: causal through routing, equal to dense where Focus must be, padding never predicted."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from focus_jax.config import Config, dense_twin, gpt2
from focus_jax.errors import UserError
from focus_jax.model import Reading, Routed
from focus_jax.model.rotary import rotate, rotation
from focus_jax.training.optimizer import make_optimizer
from focus_jax.training.state import build, graph_of, initial_state, merge
from tests.changes import changed

TOKENS = 40
SOFT = Reading("soft")
READINGS = [SOFT, Reading("hard", 1), Reading("hard", 2, gated=False), Reading("hard", 0, gated=False)]
CAUSAL = [
    {"balance": balance, "gate": gate, "membership": membership}
    for balance, gate, membership in [
        *itertools.product(["carried"], ["log", "sigmoid"], ["query", "shared"]),
        ("none", "log", "query"),
    ]
]


def tokens(batch: int = 2, length: int = TOKENS, seed: int = 0) -> jax.Array:
    return jax.random.randint(jax.random.key(seed), (batch, length), 0, 257)


def logits_of(run: Config, tokens_BT: jax.Array, reading: Reading = SOFT) -> jax.Array:
    return build(run)(tokens_BT, reading)[0][..., : run.model.vocab_size]


def in_blocks(run: Config) -> Config:
    """With its attention computed as everybody's is on a CPU."""
    return changed(run, model={"attention_implementation": "auto"})


def causal_run(run: Config, focus: dict) -> Config:
    """In blocks with the balance that is recommended; the others by the definition, which compiles sooner."""
    run = changed(run, attention=focus)
    return in_blocks(run) if focus["balance"] == "carried" else run


def best_groups(layer: Routed) -> jax.Array:
    return jnp.argmax(layer.log_affinity_BTK, axis=-1)


def readable(focus: dict, reading: Reading) -> bool:
    """Gated hard readings exist for gate `log` with membership `query`."""
    ungated = reading.routing == "soft" or not reading.gated
    return ungated or (focus["gate"] == "log" and focus["membership"] == "query")


@pytest.mark.parametrize(
    ("focus", "reading"), [(f, r) for f, r in itertools.product(CAUSAL, READINGS) if readable(f, r)]
)
def test_no_earlier_logit_or_group_depends_on_the_suffix(run, focus, reading):
    model = jax.jit(build(causal_run(run, focus)), static_argnums=1)
    first_BT, second_BT = tokens(), tokens(seed=1)
    for cut in (1, 17, TOKENS - 1):
        mixed_BT = jnp.concatenate([first_BT[:, :cut], second_BT[:, cut:]], axis=1)
        (one, one_layers), (other, other_layers) = model(first_BT, reading), model(mixed_BT, reading)
        np.testing.assert_allclose(one[:, :cut, :257], other[:, :cut, :257], atol=1e-5)
        for a, b in zip(one_layers, other_layers, strict=True):
            np.testing.assert_array_equal(best_groups(a)[:, :cut], best_groups(b)[:, :cut])


@pytest.mark.parametrize("focus", [{"balance": "carried"}, {"balance": "none", "gate": "sigmoid"}])
@pytest.mark.parametrize("reading", [SOFT, Reading("hard", 2, gated=False)])
def test_no_logit_has_a_gradient_from_a_later_embedding(run, focus, reading):
    assert not future_gradient(causal_run(run, focus), reading).any()


def test_the_published_balance_sees_the_future(run):
    """What the two tests above guard against: Sinkhorn over the tokens of the sequence."""
    published = changed(run, attention={"balance": "sinkhorn", "gate": "sigmoid"})
    assert future_gradient(published, SOFT).any()


def future_gradient(run: Config, reading: Reading) -> jax.Array:
    """Gradient of all logits at position 20 with respect to the embeddings after it."""
    state = initial_state(run, make_optimizer(run))
    tokens_BT = jnp.arange(TOKENS)[None]

    def logits(table_VD: jax.Array) -> jax.Array:
        params = {**state.params, "embedding": {"embedding": table_VD}}
        logits_BTV, _ = merge(graph_of(run), params, state.carried)(tokens_BT, reading)
        return jnp.sum(jnp.sin(logits_BTV[0, 20, :257]))

    gradient_VD = jax.jit(jax.grad(logits))(state.params["embedding"]["embedding"])
    assert gradient_VD[:21].any()
    return gradient_VD[21:TOKENS]


@pytest.mark.parametrize("reading", READINGS[:3])
@pytest.mark.parametrize("focus", [{"groups": 1, "top_k": 1}, {"window": TOKENS}])
def test_one_group_or_an_endless_window_is_dense_attention(run, focus, reading):
    if focus.get("groups") == 1:
        reading = dataclasses.replace(reading, top_k=min(reading.top_k, 1))
    run = changed(run, attention=focus)
    np.testing.assert_allclose(
        logits_of(run, tokens(), reading), logits_of(dense_twin(run), tokens()), rtol=1e-4, atol=1e-4
    )


def test_focus_is_not_dense_attention_otherwise(run):
    difference = jnp.abs(logits_of(run, tokens()) - logits_of(dense_twin(run), tokens()))
    # Every key of the first positions is within the window of 5 of both layers.
    assert difference[:, :6].max() < 1e-4
    assert difference[:, 12:].max() > 1e-2


def test_gate_log_becomes_the_hard_mask_as_affinities_become_one_hot(run):
    sharp = changed(run, attention={"score_std": 1e5})
    soft, hard = logits_of(sharp, tokens()), logits_of(sharp, tokens(), Reading("hard", 1, gated=False))
    np.testing.assert_allclose(soft, hard, atol=1e-3)
    published = changed(sharp, attention={"gate": "sigmoid"})
    assert jnp.abs(logits_of(published, tokens()) - hard).max() > 0.1


def test_hard_readings_differ_by_top_k_and_gate(run):
    readings = [Reading("hard", k, gated) for k in (1, 2, 4) for gated in (True, False)]
    different = [logits_of(run, tokens(), reading) for reading in readings]
    for one, other in itertools.combinations(different, 2):
        assert jnp.abs(one - other).max() > 1e-3


def test_padded_vocabulary_is_never_predicted(run):
    for tied in (True, False):
        logits_BTV, _ = build(changed(run, model={"tied_embeddings": tied}))(tokens(), SOFT)
        assert logits_BTV.shape[-1] == 384
        assert jnp.isneginf(logits_BTV[..., 257:]).all()
        assert jnp.isfinite(logits_BTV[..., :257]).all()


def test_more_tokens_than_learned_positions_is_a_readable_error(run):
    model = dataclasses.replace(gpt2(vocab_size=257, width=32, layers=1, heads=2))
    run = changed(run, model=dataclasses.asdict(model))
    with pytest.raises(UserError, match=r"model\.positions: the 48 learned positions do not reach 49"):
        build(run)(tokens(length=49), SOFT)


def test_rotary_models_read_beyond_the_training_length(run):
    assert jnp.isfinite(logits_of(run, tokens(length=130))).all()


def test_rotary_logits_depend_on_distance_alone():
    q_BTHC, k_BTHC = jax.random.normal(jax.random.key(0), (2, 1, 1, 1, 16))
    by = rotation(100, 16, 10_000.0)
    rotated_q, rotated_k = (rotate(jnp.broadcast_to(x, (1, 100, 1, 16)), by)[0, :, 0] for x in (q_BTHC, k_BTHC))
    products = rotated_q @ rotated_k.T
    np.testing.assert_allclose(products[50, 40], products[20, 10], rtol=1e-4)
    assert abs(products[50, 40] - products[50, 30]) > 1e-3


def test_bfloat16_stays_near_float32_and_routes_alike(run):
    exact, rounded = build(run), build(changed(run, model={"compute_dtype": "bfloat16"}))
    (exact_logits, exact_layers), (rounded_logits, rounded_layers) = exact(tokens(), SOFT), rounded(tokens(), SOFT)
    assert rounded_logits.dtype == jnp.float32
    assert jnp.abs(exact_logits - rounded_logits)[..., :257].mean() < 0.05 * jnp.abs(exact_logits[..., :257]).mean()
    same = best_groups(exact_layers[0]) == best_groups(rounded_layers[0])
    assert same.mean() > 0.95


def test_implementations_agree_in_the_model(run):
    for reading in (SOFT, Reading("hard", 2)):
        found, expected = logits_of(in_blocks(run), tokens(), reading), logits_of(run, tokens(), reading)
        np.testing.assert_allclose(found, expected, atol=1e-4)
