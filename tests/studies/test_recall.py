"""The recall study: its task asks what only distant tokens tell, arms are what they are called, rows are not redone."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from focus_jax.config_loading import check
from focus_jax.errors import UserError
from focus_jax.model import as_trained
from focus_jax.studies.recall import task, trial
from focus_jax.studies.recall.__main__ import NAMES, main
from focus_jax.studies.recall.arms import IDENTITY, Arm, arms, config_of
from focus_jax.studies.recall.table import table
from focus_jax.studies.results import Results


def test_every_query_asks_for_the_value_of_one_distant_key():
    batch = task.draw(jax.random.key(0), 50)
    for inputs_T, targets_T in zip(*(np.asarray(x) for x in batch), strict=True):
        values = {token // task.VALUES: token % task.VALUES for token in inputs_T[: task.SHOWN].tolist()}
        assert len(values) == task.SHOWN
        asked = inputs_T[-task.SHOWN :] - task.FIRST_QUERY
        assert [values[symbol] for symbol in asked.tolist()] == targets_T[-task.SHOWN :].tolist()
        assert (targets_T[: -task.SHOWN] == -1).all()
    # The last key is further from the first query than the window reaches.
    assert task.TOKENS - task.SHOWN - (task.SHOWN - 1) > task.WINDOW


@pytest.mark.parametrize("form", ["kind", "apart"])
def test_key_and_query_share_a_feature_in_form_kind_alone(form):
    table_VD = task.initial_embeddings(jax.random.key(0), form, rows=640, width=512, std=0.02)
    assert table_VD.shape == (640, 512)
    unit_VD = table_VD / jnp.linalg.norm(table_VD, axis=-1, keepdims=True)
    keys_SD = unit_VD[: task.FIRST_QUERY].reshape(task.SYMBOLS, task.VALUES, -1)[:, 0]
    likeness_SS = keys_SD @ unit_VD[task.FIRST_QUERY : task.FIRST_FILLER].T
    kind_S = np.arange(task.SYMBOLS) % task.KINDS
    same_SS = kind_S[:, None] == kind_S
    assert abs(likeness_SS[~same_SS].mean()) < 0.05
    assert (likeness_SS[same_SS].mean() > 0.3) == (form == "kind")


def test_arms_are_what_they_are_called():
    chosen = {arm.name: arm for arm in arms(["kind"], NAMES, [4], [1], 1, "")}
    readings = {name: as_trained(check(config_of(arm)).attention, 0) for name, arm in chosen.items()}
    assert readings["dense"] is None
    assert (readings["local"].routing, readings["local"].top_k) == ("hard", 0)
    soft = {name for name, reading in readings.items() if reading and reading.routing == "soft"}
    gated = {name for name, reading in readings.items() if reading and reading.routing == "hard" and reading.gated}
    assert (soft, gated) == ({"soft", "anneal"}, {"gate"})
    assert config_of(chosen["frozen"]).optimizer.router_lr_multiplier == 0
    assert len(list(arms(["kind", "apart"], NAMES, [4, 8], [1, 2], 5, ""))) == 5 * 2 * (2 + 5 * 4)
    assert config_of(Arm("kind", "distill", 4, 1, 0, "attention.probes=7 optimizer.peak_lr=0.1")).attention.probes == 7


@pytest.mark.parametrize(
    "changes",
    [
        "attention.dense_layers=0",
        "training.sequence_length=30",
        "training.steps=60",
        "attention.hard_from_step=30",
    ],
)
def test_changes_that_the_study_would_not_follow_are_refused(changes):
    with pytest.raises(UserError, match=rf"--changes {changes.split('=')[0]}: "):
        config_of(Arm("kind", "distill", 4, 1, 0, changes))


def test_rows_are_not_done_again_and_make_the_table(tmp_path, monkeypatch, capsys):
    done = []

    def pretend(arm: Arm) -> dict:
        done.append(arm)
        return dataclasses.asdict(arm) | {
            "accuracy": 0.8 if arm.name == "distill" else 1.0,
            "kept_fraction": 0.4,
            "dominance": 0.3,
            "accuracy_curve": [0.1, 0.95],
            "tokens_between": 500,
            "seconds": 1.0,
        }

    monkeypatch.setattr("focus_jax.studies.recall.__main__.run_arm", pretend)
    command = [
        "--results",
        str(tmp_path / "rows.jsonl"),
        "--names",
        "dense",
        "distill",
        "--groups",
        "4",
        "--top-k",
        "1",
    ]
    assert main([*command, "--seeds", "1"]) == 0
    assert main([*command, "--seeds", "2"]) == 0
    assert len(done) == len(set(done)) == 8
    printed = table(Results(tmp_path / "rows.jsonl", IDENTITY, ()).rows)
    assert printed in capsys.readouterr().out
    [line] = [line for line in printed.splitlines() if line.startswith("apart  distill")]
    assert line.split() == ["apart", "distill", "4", "1", "2", "0.800", "0.800", "0.800", "40%", "30%", "1,000"]


def test_another_studys_file_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.setattr("focus_jax.studies.recall.__main__.run_arm", dataclasses.asdict)
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"preset": "small", "name": "dense", "seed": 0}\n')
    with pytest.raises(UserError, match="no row of this study: it has no form, groups, top_k, changes, accuracy"):
        main(["--results", str(rows)])
    assert rows.read_text() == '{"preset": "small", "name": "dense", "seed": 0}\n'


@pytest.mark.slow
def test_an_arm_trains_and_is_measured(monkeypatch):
    """Steps enough for dense attention to learn the task; what the window does not show cannot be learned at all."""
    monkeypatch.setattr("focus_jax.studies.recall.arms.STEPS", 250)
    row = trial.run_arm(Arm("kind", "dense", 1, 0, 0))
    assert len(row["accuracy_curve"]) == 5
    assert row["accuracy"] > 0.5 > 2 * row["accuracy_curve"][0]
    assert row["kept_fraction"] == 1
    local = trial.run_arm(Arm("kind", "local", 1, 0, 0))
    assert local["accuracy"] < 2 * task.CHANCE
    assert local["kept_fraction"] < 0.2
