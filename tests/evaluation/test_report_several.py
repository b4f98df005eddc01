"""Pages that compare runs: twins trained apart, and seeds."""

import dataclasses
import math

import numpy as np
import pytest

from focus_jax.config import Dense
from focus_jax.errors import UserError
from focus_jax.evaluation.report import write_comparison
from focus_jax.evaluation.report.pairs import experiments_of, names_of, over_seeds, pairs_of
from focus_jax.evaluation.report.record import RunRecord
from tests.evaluation.test_report import text_of
from tests.synthetic_run import synthetic_config, write_run


def read_run(config):
    return RunRecord.read(write_run(config))


def store_losses(run, name, nats_ST, text="same"):
    """As evaluation stores them at the last checkpoint."""
    folder = run.folder / "evaluations" / str(run.config.training.steps)
    folder.mkdir(parents=True)
    documents_ST = np.repeat(np.arange(len(nats_ST))[:, None], nats_ST.shape[1], axis=1)
    valid_ST = np.ones(nats_ST.shape, bool)
    np.savez(folder / name, nats_ST=nats_ST, valid_ST=valid_ST, documents_ST=documents_ST, text_sha256=np.array(text))


def twins_apart(tmp_path, **dense_changes):
    focus = read_run(synthetic_config(tmp_path / "focus", models=("focus",)))
    dense = read_run(synthetic_config(tmp_path / "dense", models=("dense",), **dense_changes))
    return focus, dense


def test_twins_trained_apart_are_found_and_paired_token_by_token(tmp_path):
    focus, dense = twins_apart(tmp_path, attention=Dense())
    base_ST = np.random.default_rng(0).normal(3, 1, (8, 16))
    shift_S1 = np.linspace(-0.04, -0.01, 8)[:, None]
    store_losses(focus, "focus_soft.npz", base_ST + shift_S1)
    store_losses(dense, "dense.npz", base_ST)
    (pair,) = pairs_of([focus, dense])
    history = next(iter(pair.comparisons().values()))
    assert [row["step"] for row in history] == [100, 200, 300, 400, 500, 600]
    # The sequences are the documents, all of one length: the interval is that of a mean of eight values.
    half_width = 2.3646 * np.std(shift_S1, ddof=1) / math.sqrt(8)
    assert history[-1]["delta_nats"] == pytest.approx(-0.025)
    assert history[-1]["delta_ci95"] == pytest.approx((-0.025 - half_width, -0.025 + half_width), rel=1e-3)
    assert history[0]["delta_ci95"] is None


def test_losses_of_different_text_are_not_paired(tmp_path):
    focus, dense = twins_apart(tmp_path)
    store_losses(focus, "focus_soft.npz", np.ones((4, 8)))
    store_losses(dense, "dense.npz", np.ones((4, 8)), text="other")
    with pytest.raises(UserError, match="different held-out text"):
        write_comparison([focus.folder, dense.folder], tmp_path / "comparison.html")


@pytest.mark.parametrize("changes", [{"seed": 1}, {"training": {"steps": 500}}])
def test_runs_that_differ_in_more_than_attention_are_no_twins(tmp_path, changes):
    if "training" in changes:
        changes = {"training": dataclasses.replace(synthetic_config(tmp_path).training, **changes["training"])}
    focus, dense = twins_apart(tmp_path, **changes)
    assert pairs_of([focus, dense]) == []
    page = write_comparison([focus.folder, dense.folder], tmp_path / "comparison.html").read_text()
    assert "Without a twin here, and left out of the comparison: focus, dense" in text_of(page)


def test_seeds_are_put_together_and_other_settings_kept_apart(tmp_path):
    wider = dataclasses.replace(synthetic_config(tmp_path).attention, window=128)
    configs = [synthetic_config(tmp_path / f"seed{seed}", seed=seed) for seed in (2, 0, 1)]
    runs = [read_run(config) for config in [*configs, synthetic_config(tmp_path / "wide", attention=wider)]]
    experiments = experiments_of(pairs_of(runs))
    assert [[pair.seed for pair in experiment.pairs] for experiment in experiments] == [[0, 1, 2], [0]]
    assert names_of(experiments) == ["attention.window=64", "attention.window=128"]
    page = write_comparison([run.folder for run in runs], tmp_path / "comparison.html").read_text()
    text = text_of(page)
    assert "Mean of 3 seeds, read as trained (focus soft); the interval says what another seed would give" in text
    assert "One pair, read as trained (focus soft): the interval says what other held-out text would give" in text


def test_the_interval_over_seeds_is_students(tmp_path):
    outcome = over_seeds([-0.02, -0.01, -0.03])
    assert outcome.delta_nats == pytest.approx(-0.02)
    # t(0.975, 2) = 4.3027, standard error 0.01 / √3
    assert outcome.interval == pytest.approx((-0.02 - 0.024841, -0.02 + 0.024841), rel=1e-4)
    assert outcome.ahead == "unclear"
    assert over_seeds([-0.02, -0.021, -0.019]).ahead == "focus"
    assert over_seeds([0.02]).ahead == "unknown"


def test_twins_of_which_one_has_not_been_evaluated_yet_are_named_as_such(tmp_path):
    focus = write_run(synthetic_config(tmp_path / "focus", models=("focus",)))
    dense = write_run(synthetic_config(tmp_path / "dense", models=("dense",)), steps_done=50)
    page = write_comparison([focus, dense], tmp_path / "comparison.html").read_text()
    assert "Not yet evaluated at a step that all of these runs have reached" in text_of(page)


def test_pairs_of_different_length_are_compared_where_all_have_been(tmp_path):
    write_run(synthetic_config(tmp_path / "long", seed=0))
    write_run(synthetic_config(tmp_path / "short", seed=1), steps_done=350)
    page = write_comparison([tmp_path / "long", tmp_path / "short"], tmp_path / "comparison.html").read_text()
    assert "focus − dense in nats per token at step 300" in text_of(page)
