"""Uncertainty from the sampling of documents, checked against simulation and by hand."""

import numpy as np
import pytest

from focus_jax.evaluation.measures import Sample, by_position, estimate, within_window


def sample(documents_ST: np.ndarray, targets_ST: np.ndarray | None = None) -> Sample:
    targets_ST = np.ones_like(documents_ST) if targets_ST is None else targets_ST
    return Sample(np.zeros_like(documents_ST), targets_ST, documents_ST)


def test_mean_ignores_what_has_no_target():
    nats_ST = np.array([[1.0, 100.0], [3.0, 5.0]])
    found = estimate(nats_ST, sample(np.array([[0, 0], [1, 2]]), np.array([[4, -1], [4, 4]])))
    assert found.mean == pytest.approx(3.0)


def test_standard_error_by_hand():
    """Documents sum to residuals −2, 0 and 2 around the mean 3: √(8 · 3/2) / 4 tokens."""
    found = estimate(np.array([[1.0, 3.0], [3.0, 5.0]]), sample(np.array([[0, 1], [1, 2]])))
    assert found.stderr == pytest.approx((8 * 3 / 2) ** 0.5 / 4)
    low, high = found.ci95
    assert high - found.mean == pytest.approx(4.3027 * found.stderr, rel=1e-4)
    assert found.mean - low == pytest.approx(high - found.mean)


def test_interval_covers_the_truth_as_often_as_it_says():
    """Tokens of a document share a shift; taking them as independent would cover far too rarely."""
    rng = np.random.default_rng(0)
    documents_ST = np.repeat(np.arange(40), 25).reshape(20, 50)
    hits = 0
    for _ in range(1000):
        nats_ST = rng.normal(size=40)[documents_ST] + rng.normal(size=documents_ST.shape)
        low, high = estimate(nats_ST, sample(documents_ST)).ci95
        hits += low <= 0 <= high
    assert 0.925 < hits / 1000 < 0.97


def test_one_document_has_no_interval():
    found = estimate(np.array([[1.0, 2.0]]), sample(np.array([[7, 7]])))
    assert (found.mean, found.stderr, found.ci95) == (1.5, None, None)


def test_positions_within_the_window_see_all_their_keys():
    np.testing.assert_array_equal(within_window(5, 2), [True, True, True, False, False])
    assert within_window(5, 9).all()


def test_positions_are_binned_without_gaps():
    nats_ST = np.tile(np.arange(100.0), (2, 1))
    bins = by_position(nats_ST, sample(np.zeros((2, 100), int)))
    assert [first for first, _ in bins] == [0, 16, 32, 64]
    assert bins[0][1] == np.arange(16).mean()
    assert bins[-1][1] == np.arange(64, 100).mean()
