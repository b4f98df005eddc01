"""The causality check itself: passes what is causal, and fails the published balance."""

import numpy as np
import pytest

from focus_jax.config import dense_twin
from focus_jax.evaluation.causality import causality_report
from focus_jax.training.optimizer import make_optimizer
from focus_jax.training.state import initial_state
from tests.changes import changed

INPUTS_BT = np.random.default_rng(0).integers(0, 257, (3, 40), dtype=np.int32)


def report(run):
    models = {}
    for name, of_model in (("focus", run), ("dense", dense_twin(run))):
        state = initial_state(of_model, make_optimizer(of_model))
        models[name] = (state.params, state.carried)
    return causality_report(run, models, INPUTS_BT)


def test_both_twins_are_causal_in_every_reading(run):
    entries, causal = report(run)
    assert causal
    assert {(e["model"], e["routing"], e["top_k"]) for e in entries} == {
        ("focus", "soft", None),
        ("focus", "hard", 1),
        ("focus", "hard", 2),
        ("dense", "none", None),
    }
    assert all(e["largest_logit_change"] <= 1e-4 and e["changed_tokens"] == 0 for e in entries)
    assert all(e["checked_tokens"] > 0 for e in entries if e["model"] == "focus")


@pytest.mark.parametrize("gate", ["log", "sigmoid"])
def test_the_published_balance_fails(run, gate):
    entries, causal = report(changed(run, attention={"balance": "sinkhorn", "gate": gate}))
    assert not causal
    soft = next(e for e in entries if e["routing"] == "soft")
    assert soft["largest_logit_change"] > 1e-2
    assert soft["changed_tokens"] > 0
    assert all(e["causal"] for e in entries if e["model"] == "dense")
