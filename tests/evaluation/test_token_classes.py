"""Classes of tokens by their letters, and the purity of a grouping."""

import numpy as np
import pytest

from focus_jax.evaluation.token_classes import CLASSES, class_of, purity, shuffled


@pytest.mark.parametrize(
    ("token", "expected"),
    [
        ("\n    ", "space"),
        (" ,", "punctuation"),
        ('"""', "punctuation"),
        (" 3.14", "number"),
        (" lambda", "Python keyword"),
        (" None", "Python keyword"),
        (" print", "Python builtin"),
        (" The", "function word"),
        (" and", "function word"),
        (" Emma", "capitalised"),
        (" house", "word"),
        ("ing", "piece of a word"),
        ("\ufffd", "other"),
        ("x_1", "other"),
    ],
)
def test_classes(token, expected):
    assert CLASSES[class_of(token)] == expected


def test_purity_is_the_share_of_the_most_frequent_class():
    group_N, class_N = np.array([0, 0, 0, 2, 2]), np.array([7, 7, 1, 4, 4])
    most, shares = purity(group_N, class_N, 3)
    assert most == ["word", None, "Python builtin"]
    assert shares == [pytest.approx(2 / 3), None, 1.0]


def test_a_random_grouping_has_the_same_sizes_and_follows_nothing():
    class_N = np.repeat([0, 1, 2, 3], 5000)
    mixed_N = shuffled(class_N)
    assert (np.bincount(mixed_N) == 5000).all()
    assert max(purity(mixed_N, class_N, 4)[1]) < 0.27
    assert purity(class_N, class_N, 4)[1] == [1.0] * 4
    np.testing.assert_array_equal(mixed_N, shuffled(class_N))
