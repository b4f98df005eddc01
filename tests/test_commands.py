"""train.py and eval.py as a user runs them: one tiny run, looked at from all sides."""

import json
from pathlib import Path

import pytest

from focus_jax import config_loading
from focus_jax.config import Config
from tests.changes import changed
from tests.commands import command, write_config_file


def rows_of(path: Path, kind: str, step: int) -> list[dict]:
    rows = map(json.loads, path.read_text().splitlines())
    return [row for row in rows if row["kind"] == kind and row["step"] == step]


@pytest.fixture
def trained(run: Config, text: Path, tmp_path: Path) -> tuple[Path, str]:
    """The folder of a finished run, its attention computed in blocks as everybody's is, and what it printed."""
    run = changed(run, model={"layers": 1, "attention_implementation": "auto"}, evaluation={"top_k": (1,)})
    done = command("train.py", "--config", write_config_file(tmp_path, run))
    assert done.returncode == 0, done.stderr
    return Path(run.run), done.stdout


def test_a_run_from_training_to_every_kind_of_evaluation(trained, tmp_path):
    folder, printed = trained

    # What one sees, and what is written.
    for step in (4, 8, 12):
        assert f"checkpoint at step {step} of 12" in printed
    assert "attention: dense" in printed
    assert (folder / "report.html").stat().st_size > 10_000
    assert config_loading.read_json(folder / "config.json").run == str(folder)
    metrics = folder / "metrics.jsonl"
    for step in (4, 8, 12):
        assert [(r["model"], r["routing"], r["top_k"]) for r in rows_of(metrics, "eval", step)] == [
            ("dense", "none", None),
            ("focus", "soft", None),
            ("focus", "hard", 1),
            ("focus", "hard", 1),
        ]
        assert len(rows_of(metrics, "compare", step)) == 3
        assert len(rows_of(metrics, "groups", step)) == 1
    assert [r["step"] for r in map(json.loads, metrics.read_text().splitlines()) if r["kind"] == "train"][::2] == [
        2, 4, 6, 8, 10, 12,
    ]  # fmt: skip

    # The same figures again, of an older checkpoint.
    again = tmp_path / "again.jsonl"
    done = command("eval.py", "--run", folder, "--step", "8", "--json", again)
    assert done.returncode == 0, done.stderr
    for kind in ("eval", "compare", "groups"):
        assert rows_of(again, kind, 8) == rows_of(metrics, kind, 8)

    # Other readings and lengths, of the newest checkpoint.
    longer = tmp_path / "longer.jsonl"
    done = command("eval.py", "--run", folder, "--top-k", "2,4", "--length", "96", "--sequences", "5", "--json", longer)
    assert done.returncode == 0, done.stderr
    found = rows_of(longer, "eval", 12)
    assert [row["top_k"] for row in found] == [None, None, 2, 2, 4, 4]
    assert all(row["valid_tokens"] == 5 * 96 for row in found)
    assert found[-1]["kept_fraction"] == 1

    # Causality.
    done = command("eval.py", "--run", folder, "--causality")
    assert done.returncode == 0, done.stderr
    assert all(entry["causal"] for entry in json.loads(done.stdout))

    # A run that is finished is left as it is.
    before = metrics.read_bytes()
    done = command("train.py", "--config", tmp_path / "experiment.py")
    assert done.returncode == 0, done.stderr
    assert "finished" in done.stdout
    assert metrics.read_bytes() == before

    # One mistake; tests/test_bad_input.py has the others.
    done = command("eval.py", "--run", folder, "--step", "5")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "checkpoints/5: no such checkpoint; there are: 4, 8, 12" in done.stderr


@pytest.mark.slow
def test_twins_trained_apart_are_compared(trained, run, tmp_path):
    together, _ = trained
    for name in ("focus", "dense"):
        apart = str(tmp_path / name)
        done = command("train.py", "--config", tmp_path / "experiment.py", "--models", name, "--run", apart)
        assert done.returncode == 0, done.stderr
    compared = tmp_path / "compared.jsonl"
    done = command("eval.py", "--run", tmp_path / "focus", "--against", tmp_path / "dense", "--json", compared)
    assert done.returncode == 0, done.stderr
    # Apart or together, the twins are the same two models.
    assert rows_of(compared, "compare", 12) == rows_of(together / "metrics.jsonl", "compare", 12)
    done = command("eval.py", "--run", tmp_path / "dense", "--against", tmp_path / "focus")
    assert done.returncode == 2
    assert "has no focus model" in done.stderr


@pytest.mark.slow
def test_the_published_balance_is_labelled_and_fails_the_causality_check(run, text, tmp_path):
    published = changed(
        run,
        model={"layers": 1},
        attention={"balance": "sinkhorn", "gate": "sigmoid", "membership": "shared"},
        evaluation={"top_k": (1,), "allow_noncausal": True},
    )
    done = command("train.py", "--config", write_config_file(tmp_path, published))
    assert done.returncode == 0, done.stderr
    assert "NOT CAUSAL" in done.stdout
    done = command("eval.py", "--run", run.run, "--causality")
    assert done.returncode == 1
    assert {(e["model"], e["causal"]) for e in json.loads(done.stdout)} == {("focus", False), ("dense", True)}
