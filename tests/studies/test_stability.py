"""The stability study: what is held still stays, every layer is measured along the way, rows are not done again."""

import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from focus_jax.config import Config
from focus_jax.config_loading import check
from focus_jax.data.batches import train_batches
from focus_jax.data.store import open_store
from focus_jax.model import as_trained
from focus_jax.studies import stability
from focus_jax.studies.results import Results
from focus_jax.training.state import graph_of, initial_state
from focus_jax.training.step import make_train_step


def test_what_is_held_still_stays(run: Config, text: Path):
    store = open_store(run.data, run.model.vocab_size)
    optimizer = stability.optimizer_of(run, ("centroids_KR",))
    step = jax.jit(make_train_step(run, graph_of(run), optimizer, as_trained(run.attention, 0)))
    before = after = initial_state(run, optimizer)
    batches = train_batches(store, sequence_length=48, batch_size=4, seed=0, first_step=0)
    for _ in range(3):
        after, _ = step(after, *next(batches))
    for (path, old), new in zip(jax.tree.leaves_with_path(before.params), jax.tree.leaves(after.params), strict=True):
        assert jnp.array_equal(old, new) == (path[-1].key == "centroids_KR"), path


@pytest.mark.slow
def test_every_layer_is_measured_along_the_way(run: Config, text: Path, monkeypatch):
    monkeypatch.setattr(stability, "config_of", lambda arm, store: dataclasses.replace(run, seed=arm.seed))
    monkeypatch.setattr(stability, "STEPS", 40)
    monkeypatch.setattr(stability, "MEASURED_SEQUENCES", 4)
    row = stability.run_arm(stability.Arm("softmax", 0), Path(run.data.store))
    curve = row["dominance_curve"]
    assert [len(of_layer) for of_layer in curve] == [run.model.layers] * 3
    assert all(0.25 <= share <= 1 for of_layer in curve for share in of_layer)
    assert curve[0] != curve[1] != curve[2]
    assert row == stability.run_arm(stability.Arm("softmax", 0), Path(run.data.store))
    assert (
        row["dominance_curve"]
        != stability.run_arm(stability.Arm("softmax", 1), Path(run.data.store))["dominance_curve"]
    )


def test_rules_differ_in_what_they_say(tmp_path):
    softmax, carried = (
        stability.config_of(stability.Arm(name, 0), tmp_path).attention for name in ("softmax", "carried, soft")
    )
    assert softmax.balance == "none"
    assert dataclasses.replace(softmax, balance="carried") == carried
    for name in stability.RULES:
        check(stability.config_of(stability.Arm(name, 0), tmp_path))


def test_rows_are_not_done_again_and_make_the_table(tmp_path, capsys):
    done = []

    def pretend(arm: stability.Arm, store: Path) -> dict:
        done.append(arm)
        curve = [[0.3, 0.4], [0.5, 0.9 + 0.02 * arm.seed], [0.4, 0.6]]
        return dataclasses.asdict(arm) | {"groups": 4, "steps": 40, "dominance_curve": curve}

    command = ["--store", str(tmp_path), "--results", str(tmp_path / "rows.jsonl"), "--names", "softmax", "recommended"]
    assert stability.main([*command, "--seeds", "1"], run=pretend) == 0
    assert stability.main([*command, "--seeds", "2"], run=pretend) == 0
    assert len(done) == len(set(done)) == 4
    assert all(
        {"commit", "machine"} <= row.keys() for row in Results(tmp_path / "rows.jsonl", stability.IDENTITY, ()).rows
    )
    assert "| softmax | 2 | 30% 40% | 91% (90%–92%) | 40% 60% |" in capsys.readouterr().out
