"""Losses of the held-out sample, readings and their labels, kept pairs, group rows."""

import jax
import numpy as np
import pytest

from focus_jax.accounting.pairs import dense_pairs
from focus_jax.config import Config, Dense, dense_twin
from focus_jax.evaluation.evaluator import Evaluator, Measurement
from focus_jax.evaluation.measures import Sample
from focus_jax.evaluation.readings import readings_of
from focus_jax.evaluation.rows import compare_row, eval_row, groups_rows, tokens_rows
from focus_jax.model import Reading
from focus_jax.parallel.mesh import make_mesh
from focus_jax.training.optimizer import make_optimizer
from focus_jax.training.state import build, initial_state
from tests.changes import changed

SEQUENCES, TOKENS = 6, 40


@pytest.fixture
def sample() -> Sample:
    tokens_ST = np.random.default_rng(0).integers(0, 257, (SEQUENCES, TOKENS + 1), dtype=np.int32)
    documents_ST = np.repeat(np.arange(SEQUENCES * 2, dtype=np.int32), TOKENS // 2).reshape(SEQUENCES, TOKENS)
    return Sample(tokens_ST[:, :-1], tokens_ST[:, 1:], documents_ST)


def measure(run: Config, sample: Sample, reading_index: int = 0, batch_size: int = 4) -> Measurement:
    name = "dense" if isinstance(run.attention, Dense) else "focus"
    state = initial_state(run, make_optimizer(run))
    reading = readings_of(run)[reading_index]
    return Evaluator(name, run, sample, batch_size, make_mesh(run.mesh)).measure(state.params, state.carried, reading)


def test_losses_are_those_of_the_model(run, sample):
    expected_BTV = jax.nn.log_softmax(build(run)(sample.inputs_ST, Reading("soft"))[0])
    expected_ST = -np.take_along_axis(np.asarray(expected_BTV), sample.targets_ST[..., None], axis=-1)[..., 0]
    np.testing.assert_allclose(measure(run, sample).nats_ST, expected_ST, rtol=1e-4)


def test_batch_size_changes_nothing(run, sample):
    by_four, by_six = measure(run, sample, 1, batch_size=4), measure(run, sample, 1, batch_size=6)
    np.testing.assert_allclose(by_four.nats_ST, by_six.nats_ST, rtol=1e-5)
    assert by_four.kept_fraction == pytest.approx(by_six.kept_fraction)
    np.testing.assert_array_equal(by_four.groups.best_LST, by_six.groups.best_LST)


def test_readings_of_each_kind_of_model(run):
    labels = [tuple(r.labels().values()) for r in readings_of(changed(run, evaluation={"top_k": (0, 1)}))]
    assert labels == [
        ("soft", None, "log", True),
        ("hard", 0, None, True),
        ("hard", 1, "log", True),
        ("hard", 1, None, True),
    ]
    assert [tuple(r.labels().values()) for r in readings_of(dense_twin(run))] == [("none", None, None, True)]
    published = changed(run, attention={"gate": "sigmoid", "balance": "sinkhorn", "membership": "shared"})
    published = changed(published, attention={"top_k": 3}, evaluation={"top_k": ()})
    assert [tuple(r.labels().values()) for r in readings_of(published)] == [
        ("soft", None, "sigmoid", False),
        ("hard", 3, None, False),
    ]


def test_kept_fraction_counts_dense_layers_in_full(run, sample):
    assert measure(dense_twin(run), sample).kept_fraction == 1
    assert measure(run, sample).kept_fraction == pytest.approx(1)
    hard = measure(run, sample, 1).kept_fraction
    window_only = sum(min(i, 5) + 1 for i in range(TOKENS)) / dense_pairs(TOKENS)
    assert window_only < hard < 0.9
    half = measure(changed(run, attention={"dense_layers": (0,)}), sample, 1).kept_fraction
    assert half > (1 + window_only) / 2


def test_rows_of_a_checkpoint(run, sample):
    focus, dense = measure(run, sample, 1), measure(dense_twin(run), sample)
    row = eval_row(focus, sample, bytes_per_token=2.0, window=5)
    assert row["loss"] == pytest.approx(focus.nats_ST.mean(), rel=1e-6)
    assert row["ppl"] == pytest.approx(np.exp(row["loss"]))
    assert row["bits_per_byte"] == pytest.approx(row["loss"] / np.log(2) / 2.0)
    assert row["loss_within_window"] == pytest.approx(focus.nats_ST[:, :6].mean(), rel=1e-6)
    assert row["loss_beyond_window"] == pytest.approx(focus.nats_ST[:, 6:].mean(), rel=1e-6)
    assert (row["sequences"], row["valid_tokens"]) == (SEQUENCES, SEQUENCES * TOKENS)
    compared = compare_row(focus, dense, sample, window=5)
    assert compared["delta_nats"] == pytest.approx((focus.nats_ST - dense.nats_ST).mean(), abs=1e-6)
    low, high = compared["delta_ci95"]
    assert low < compared["delta_nats"] < high
    # Twins start from the same values and the first tokens see only their window, but layers differ further on.
    assert abs(compared["delta_within_window"]) < 1e-4 < abs(compared["delta_beyond_window"])


def test_group_rows_follow_the_assignments(run, sample):
    groups = measure(run, sample).groups
    first, second = groups_rows(groups, (0, 1), None)
    assert (first["layer"], second["layer"], first["switch_rate"]) == (0, 1, None)
    for index, row in enumerate((first, second)):
        counts = np.bincount(groups.best_LST[index].ravel(), minlength=4) / groups.best_LST[index].size
        np.testing.assert_allclose(row["load"], counts, rtol=1e-6)
        assert max(row["load"]) <= row["dominance"] <= 1
    moved = groups.best_LST.copy()
    moved[1, 0, :10] = (moved[1, 0, :10] + 1) % 4
    rates = [row["switch_rate"] for row in groups_rows(groups, (0, 1), moved)]
    assert rates == [0.0, pytest.approx(10 / (SEQUENCES * TOKENS))]


def test_tokens_rows_name_the_most_frequent_tokens_of_a_group(run, sample):
    groups = measure(run, sample).groups
    inputs_ST = np.where(groups.best_LST[1] == 2, 66 + np.arange(TOKENS) % 2, 97)
    rows = list(tokens_rows(groups, (0, 1), sample._replace(inputs_ST=inputs_ST), lambda ids: chr(ids[0])))
    assert [(row["layer"], row["group"]) for row in rows] == [(layer, group) for layer in (0, 1) for group in range(4)]
    in_group = inputs_ST[groups.best_LST[1] == 2]
    expected = sorted(((chr(t), float(np.mean(in_group == t))) for t in (66, 67)), key=lambda pair: -pair[1])
    assert [tuple(pair) for pair in rows[4 + 2]["top"]] == [(token, pytest.approx(share)) for token, share in expected]
    assert rows[4 + 1]["top"] == [["a", 1.0]]
    # "B" and "C" are capitals; everything outside of the group is "a", an article.
    assert (rows[4 + 2]["class"], rows[4 + 2]["purity"]) == ("capitalised", 1.0)
    assert (rows[4 + 1]["class"], rows[4 + 1]["purity"]) == ("function word", 1.0)
    assert rows[4 + 1]["purity_by_chance"] < 1


def test_a_window_longer_than_the_text_has_nothing_beyond(run, sample):
    row = eval_row(measure(run, sample), sample, bytes_per_token=1.0, window=TOKENS)
    assert row["loss_beyond_window"] is None
    assert row["loss_within_window"] == pytest.approx(row["loss"])


def test_the_readings_cover_more_than_the_same_pattern(run, sample):
    losses = [measure(run, sample, index).nats_ST.mean() for index in range(len(readings_of(run)))]
    assert len({round(float(loss), 5) for loss in losses}) == len(losses)
