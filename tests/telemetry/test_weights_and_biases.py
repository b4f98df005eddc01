"""Against logs read back from the disk, and against a server on this machine that keeps what it is sent."""

import dataclasses
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest
import wandb

from focus_jax.errors import UserError
from focus_jax.telemetry import Telemetry, weights_and_biases
from focus_jax.telemetry.experiment import group
from focus_jax.telemetry.metrics import read_rows
from tests.synthetic_run import rows_of_run, synthetic_config
from tests.telemetry import offline_run


@pytest.fixture
def config(tmp_path):
    (tmp_path / "run").mkdir()
    return synthetic_config(tmp_path / "run")


def with_wandb(config, mode, **fields):
    return dataclasses.replace(config, telemetry=dataclasses.replace(config.telemetry, wandb=mode, **fields))


def drive(config, first, last, resumed_step=None):
    """Runs the telemetry of these steps to its end."""
    telemetry = Telemetry(config, Path(config.run), resumed_step)
    for row in rows_of_run(config, events=True):
        if first <= row["step"] <= last:
            telemetry.write(row)
    close(telemetry)


def close(telemetry):
    """As at the end of a process: W&B's own process has written everything when it has ended."""
    telemetry.close()
    wandb.teardown()


def upload(config):
    """With the command that the run prints at its end."""
    (log,) = Path(config.run).glob("wandb/offline-run-*")
    subprocess.run([sys.executable, "-m", "wandb", "sync", log], cwd=log, check=True, capture_output=True, timeout=60)


def figures_of(history):
    """Rows without the clock."""
    return [{key: value for key, value in row.items() if key not in ("_timestamp", "_runtime")} for row in history]


def test_an_offline_run_holds_every_figure_of_metrics_under_tokens_and_seconds(config):
    config = with_wandb(config, "offline")
    drive(config, 0, 600)
    history = offline_run.history(Path(config.run))
    rows = [row for row in read_rows(Path(config.run) / "metrics.jsonl") if row["kind"] != "event"]
    assert [row["tokens"] for row in history] == [row["tokens"] for row in rows]
    last = {key: value for row in history for key, value in row.items()}
    assert last["eval/focus_hard_top_k_1_log_gate/perplexity"] == pytest.approx(14.18, abs=0.01)
    assert last["compare/focus_soft/interval_high"] == pytest.approx(-0.0267, abs=1e-4)
    assert 0.1 < last["groups/layer_01/largest_share"] < 0.5
    (dense,) = [row for row in history if row["step"] == 600 and "eval/dense/perplexity" in row]
    (focus,) = [row for row in history if row["step"] == 600 and "eval/focus_soft/perplexity" in row]
    assert (round(dense["seconds"]), round(focus["seconds"])) == (413, 534)


def test_an_offline_run_carries_its_config_tags_group_and_axis(config):
    drive(with_wandb(config, "offline"), 0, 20)
    records = list(offline_run.records(Path(config.run)))
    (run,) = [record.run for record in records if record.HasField("run")]
    assert set(run.tags) == {"focus", "dense", "4 layers of 192", "trained hard", "K=8", "top_k=2", "window=64"}
    assert {item.key for item in run.config.update} >= {"model", "attention", "training", "seed"}
    axes = {record.metric.glob_name: record.metric.step_metric for record in records if record.metric.glob_name}
    assert axes == dict.fromkeys(("train/*", "eval/*", "compare/*", "groups/*"), "tokens")


def test_seeds_share_a_group_and_other_settings_do_not(config):
    other_seed = dataclasses.replace(config, seed=5, run="elsewhere", models=("focus", "dense"))
    wider = dataclasses.replace(config, attention=dataclasses.replace(config.attention, window=65))
    assert group(other_seed) == group(config) != group(wider)


def test_a_continued_offline_run_is_one_log_without_duplicate_or_backward_steps(config):
    config = with_wandb(config, "offline")
    drive(config, 0, 250)
    drive(config, 201, 600, resumed_step=200)
    continued = offline_run.history(Path(config.run))
    shutil.rmtree(Path(config.run))
    Path(config.run).mkdir()
    drive(config, 0, 600)
    assert figures_of(continued) == figures_of(offline_run.history(Path(config.run)))


def test_uploading_an_offline_run_before_and_after_it_was_continued_gives_it_once(config, server):
    config = with_wandb(config, "offline")
    drive(config, 0, 250)
    upload(config)
    assert server.history[-1]["step"] == 250
    drive(config, 201, 600, resumed_step=200)
    upload(config)
    assert figures_of(server.history) == figures_of(offline_run.history(Path(config.run)))


def test_a_continued_online_run_keeps_its_id_and_sends_only_what_is_missing(config, server):
    config = with_wandb(config, "online")
    drive(config, 0, 250)
    assert server.history[-1]["step"] == 250
    first_id = server.run["name"]
    drive(config, 201, 600, resumed_step=200)
    steps = [row["_step"] for row in server.history]
    assert steps == sorted(set(steps))
    assert server.rewritten == []
    assert server.run["name"] == first_id
    rows = [row for row in read_rows(Path(config.run) / "metrics.jsonl") if row["kind"] != "event"]
    assert [row["tokens"] for row in server.history] == [row["tokens"] for row in rows]
    assert server.alerts == ["starved_group"]


def test_rows_that_never_reached_the_server_are_sent_when_the_run_is_continued(config, server):
    drive(config, 0, 200)
    drive(with_wandb(config, "online"), 201, 300, resumed_step=200)
    rows = [row for row in read_rows(Path(config.run) / "metrics.jsonl") if row["kind"] != "event"]
    assert [row["tokens"] for row in server.history] == [row["tokens"] for row in rows]


def test_a_server_that_does_not_answer_makes_the_run_go_on_offline_and_say_so(config, server, monkeypatch, capsys):
    monkeypatch.setattr(weights_and_biases, "INIT_SECONDS", 1)
    server.stop()
    drive(with_wandb(config, "online"), 0, 100)
    said = capsys.readouterr().out
    assert "W&B: it cannot be reached" in said
    assert "this run goes on offline" in said
    assert "wandb sync" in said
    assert offline_run.history(Path(config.run))[-1]["step"] == 100


def test_a_server_that_goes_away_does_not_keep_a_run_from_its_end(config, server, monkeypatch):
    monkeypatch.setattr(weights_and_biases, "FINISH_SECONDS", 2)
    run = with_wandb(config, "online")
    telemetry = Telemetry(run, Path(run.run))
    server.stop()
    rows = [row for row in rows_of_run(run) if row["step"] <= 200]
    for row in rows:
        telemetry.write(row)
    end = threading.Thread(target=telemetry.close, daemon=True)
    end.start()
    end.join(timeout=60)
    assert not end.is_alive(), "W&B's default is to wait for the server for ever"
    assert read_rows(Path(run.run) / "metrics.jsonl") == rows


def test_a_run_outlives_the_process_that_sends_its_figures(config, capsys):
    run = with_wandb(config, "offline")
    telemetry = Telemetry(run, Path(run.run))
    rows = [row for row in rows_of_run(run) if row["step"] <= 200]
    telemetry.write(rows[0])
    (process,) = [child for child in psutil.Process().children() if child.name() == "wandb-core"]
    process.kill()
    process.wait()
    for row in rows[1:]:
        telemetry.write(row)
    telemetry.close()
    assert read_rows(Path(run.run) / "metrics.jsonl") == rows
    assert capsys.readouterr().out.count("nothing more is sent") == 1


@pytest.mark.parametrize(("key", "message"), [(None, "needs a W&B key"), ("short", "needs a valid W&B key")])
def test_online_without_a_valid_key_is_refused_without_asking(config, monkeypatch, key, message):
    if key:
        monkeypatch.setenv("WANDB_API_KEY", key)
    with pytest.raises(UserError, match=rf"telemetry\.wandb: .*{message}"):
        drive(with_wandb(config, "online"), 0, 10)


@pytest.mark.parametrize(("name", "value"), [("WANDB_MODE", "sometimes"), ("WANDB_BASE_URL", "nowhere")])
def test_a_setting_of_the_environment_that_is_none_is_named(config, monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=rf"^{name}: Input should be .*\(it is '{value}'\)"):
        drive(with_wandb(config, "offline"), 0, 10)


def test_checkpoints_become_artifacts_only_where_that_is_wanted(config, tmp_path):
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    (checkpoint / "array").write_bytes(b"1234")
    for wanted in (False, True):
        run = with_wandb(config, "offline", wandb_checkpoints=wanted)
        telemetry = Telemetry(run, Path(run.run))
        telemetry.checkpoint_saved(100, checkpoint)
        close(telemetry)
        requests = [r.request.log_artifact for r in offline_run.records(Path(run.run)) if r.HasField("request")]
        artifacts = [r.artifact for r in offline_run.records(Path(run.run)) if r.HasField("artifact")]
        assert len(requests) + len(artifacts) == wanted
