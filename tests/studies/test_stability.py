"""The stability study: what is held still stays, what prevents collapse does, rows are not done again."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import pytest

from focus_jax.model import as_trained
from focus_jax.studies import stability
from focus_jax.studies.recall import arms as recall
from focus_jax.studies.recall.trial import initial, train_on


@pytest.mark.slow
def test_what_is_held_still_stays():
    run = recall.config_of(recall.Arm("kind", "soft", 4, 1, 0, stability.RULES["softmax"].changes))
    optimizer = stability.optimizer_of(run, ("centroids_KR",))
    state = initial(run, "kind", 0)
    state = state._replace(opt_state=optimizer.init(state.params))
    trained = jax.jit(partial(train_on, run, optimizer, as_trained(run.attention, 0)))(state, jax.random.key(0))
    assert jax.tree.structure(trained) == jax.tree.structure(state)
    for path, before in jax.tree.leaves_with_path(state.params):
        after = trained.params
        for key in path:
            after = after[key.key]
        assert jnp.array_equal(before, after) == (path[-1].key == "centroids_KR"), path


def test_rows_are_not_done_again_and_make_the_table(tmp_path, capsys):
    done = []

    def pretend(arm: stability.Arm) -> dict:
        done.append(arm)
        return dataclasses.asdict(arm) | {"groups": 4, "steps": 50, "dominance_curve": [0.3, 0.9 + 0.02 * arm.seed]}

    command = ["--results", str(tmp_path / "rows.jsonl"), "--names", "softmax", "recommended"]
    assert stability.main([*command, "--seeds", "1"], run=pretend) == 0
    assert stability.main([*command, "--seeds", "2"], run=pretend) == 0
    assert len(done) == len(set(done)) == 4
    assert "| softmax | 2 | 30% | 91% | 90%, 92% |" in capsys.readouterr().out


@pytest.mark.slow
def test_recommended_groups_stay_in_use(monkeypatch):
    monkeypatch.setattr("focus_jax.studies.recall.arms.STEPS", 500)
    row = stability.run_arm(stability.Arm("recommended", 0))
    assert len(row["dominance_curve"]) == 11
    assert row["dominance_curve"][-1] < 0.4
