"""When a group is warned about."""

import pytest

from focus_jax.evaluation.group_health import troubles


def found(*load: float) -> dict[str, dict[int, float]]:
    return {trouble.name: trouble.shares for trouble in troubles({"layer": 3, "load": list(load)})}


@pytest.mark.parametrize("load", [(0.25,) * 4, (0.026, 0.324, 0.325, 0.325), (0.62, 0.13, 0.13, 0.12), (1.0,)])
def test_groups_that_are_merely_uneven_are_none_of_our_business(load):
    assert found(*load) == {}


def test_thresholds_follow_the_number_of_groups():
    assert found(0.024, 0.326, 0.325, 0.325) == {"starved_group": {0: 0.024}}
    assert found(0.03, 0.63, 0.17, 0.17) == {"dominant_group": {1: 0.63}}
    assert found(0.0, 1.0) == {"starved_group": {0: 0.0}, "dominant_group": {1: 1.0}}
    assert found(0.01, *(0.99 / 15,) * 15) == {}
    assert found(0.006, *(0.994 / 15,) * 15) == {"starved_group": {0: 0.006}}


def test_layer_and_share_are_said():
    trouble, _ = troubles({"layer": 3, "load": [0.0, 0.004, 0.996, 0.0]})
    assert (trouble.layer, trouble.name) == (3, "starved_group")
    shares = "group 0 (0.00%), group 1 (0.40%), group 3 (0.00%)"
    assert trouble.message == f"layer 3: starved: {shares} of the held-out tokens; even would be 25.00%"
