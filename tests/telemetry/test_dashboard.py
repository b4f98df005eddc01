import dataclasses
import json
import re
import sys

import pytest
import wandb

from focus_jax.errors import UserError
from focus_jax.telemetry import Telemetry
from focus_jax.telemetry.dashboard import main, workspace
from tests.synthetic_run import rows_of_run, synthetic_config
from tests.telemetry import offline_run


@pytest.fixture(scope="module")
def logged(tmp_path_factory):
    """Every key of a real offline run, read back from the disk."""
    folder = tmp_path_factory.mktemp("run")
    config = synthetic_config(folder)
    config = dataclasses.replace(config, telemetry=dataclasses.replace(config.telemetry, wandb="offline"))
    telemetry = Telemetry(config, folder)
    for row in rows_of_run(config):
        telemetry.write(row)
    telemetry.close()
    wandb.teardown()
    return {key for row in offline_run.history(folder) for key in row}


def panels():
    return [panel for section in workspace("someone", "focus-jax", (1, 2)).sections for panel in section.panels]


@pytest.mark.parametrize("panel", panels(), ids=lambda panel: panel.title)
def test_every_key_of_a_panel_exists_in_a_run(logged, panel):
    assert panel.x in logged
    assert panel.y or panel.metric_regex
    assert set(panel.y) <= logged
    if panel.metric_regex:
        assert any(re.fullmatch(panel.metric_regex, key) for key in logged)


def test_the_workspace_compares_the_twins_by_tokens_and_by_seconds():
    by_title = {panel.title: panel for panel in panels()}
    over_seconds = by_title["Held-out perplexity over seconds of training"]
    assert over_seconds.x == "seconds"
    assert {"eval/dense/perplexity", "eval/focus_soft/perplexity"} <= set(over_seconds.y)
    assert by_title["focus soft − dense, nats per token, with its 95 % interval"].y == [
        "compare/focus_soft/delta_nats",
        "compare/focus_soft/interval_low",
        "compare/focus_soft/interval_high",
    ]


def test_the_command_saves_the_workspace_and_prints_its_address(server, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["dashboard", "--entity", "someone", "--project", "focus-jax", "--top-k", "4"])
    assert main() == 0
    assert f"{server.url}/someone/focus-jax" in capsys.readouterr().out
    sections = json.loads(server.view["spec"])["section"]["panelBankConfig"]["sections"]
    metrics = {key for section in sections for panel in section["panels"] for key in panel["config"].get("metrics", [])}
    assert "eval/focus_hard_top_k_4_log_gate/perplexity" in metrics


def test_the_command_needs_a_key_and_numbers(server, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["dashboard", "--entity", "someone", "--project", "p", "--top-k", "one"])
    with pytest.raises(UserError, match="--top-k one"):
        main()
    monkeypatch.delenv("WANDB_API_KEY")
    monkeypatch.setattr(sys, "argv", ["dashboard", "--entity", "someone", "--project", "p"])
    wandb.teardown()
    with pytest.raises(UserError, match="needs a W&B key"):
        main()
