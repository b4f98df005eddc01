"""The quality study: arms are what they are called, the table's sums are right, an arm trains and is not done again."""

import dataclasses
import shutil
from pathlib import Path

import jax.numpy as jnp
import pytest

from focus_jax.accounting.pairs import dense_pairs, local_pairs
from focus_jax.config import Config, Dense, Focus
from focus_jax.config_loading import check
from focus_jax.errors import UserError
from focus_jax.evaluation.readings import readings_of
from focus_jax.studies.quality import arms as quality
from focus_jax.studies.quality import distant, length
from focus_jax.studies.quality.__main__ import main
from focus_jax.studies.quality.arms import ARMS, IDENTITY, Arm, arms, config_of
from focus_jax.studies.quality.figure import lines
from focus_jax.studies.quality.table import recovered, table
from focus_jax.studies.results import Results
from tests.changes import changed


@pytest.mark.parametrize("preset", ["small", "gpu"])
def test_arms_are_what_they_are_called(preset):
    runs = {name: check(config_of(Arm(preset, name, 3), Path("runs"))) for name in ARMS}
    recommended = runs["focus"].attention
    for name, run in runs.items():
        same = ("model", "data", "training", "checkpoint", "telemetry", "seed")
        assert all(getattr(run, field) == getattr(runs["focus"], field) for field in same), name
        assert run.models == (("dense",) if name == "dense" else ("focus",))
    assert len({run.run for run in runs.values()}) == len(ARMS)
    assert runs["dense"].attention == Dense()
    assert (runs["local"].attention.top_k, runs["local"].attention.window) == (0, recommended.window)
    assert runs["frozen"].attention == recommended
    assert runs["frozen"].optimizer.router_lr_multiplier == 0 < runs["focus"].optimizer.router_lr_multiplier
    assert {runs["other-top-k"].attention.top_k, recommended.top_k} == {1, 2}
    assert [r.causal for r in readings_of(runs["published"])] == [False, False]
    assert runs["published"].attention.scores == "dot"
    assert [r.routing for r in readings_of(runs["soft"])] == ["soft", "hard", "hard"]
    assert len({run.attention for run in runs.values()}) == len(ARMS) - 1


def test_the_wide_window_keeps_as_many_pairs_as_even_groups():
    run, wide = (config_of(Arm("small", name, 0), Path("runs")) for name in ("focus", "wide"))
    tokens, near = run.training.sequence_length, local_pairs(run.training.sequence_length, run.attention.window)
    share = run.attention.top_k / run.attention.groups
    kept = near + share * (dense_pairs(tokens) - near)
    assert wide.attention.top_k == 0
    assert local_pairs(tokens, wide.attention.window) == pytest.approx(kept, rel=2e-3)


def test_seeds_are_as_many_as_a_claim_needs():
    planned = list(arms("small", ARMS, None, ""))
    assert len(planned) == len(set(planned)) == 5 * 5 + 3
    assert [arm.seed for arm in planned] == sorted(arm.seed for arm in planned)
    assert [arm.seed for arm in arms("small", ["soft"], [7, 8], "")] == [7, 8]
    other = config_of(Arm("small", "focus", 0, "attention.groups=8"), Path("runs"))
    assert (other.attention.groups, Path(other.run).name) == (8, "small-focus-0-attention.groups=8")


def row(name: str, seed: int, loss: float, beyond: float) -> dict:
    reading = {
        "name": name,
        "causal": True,
        "loss": loss,
        "ppl": 2.0,
        "loss_beyond_window": beyond,
        "kept_fraction": 0.5,
        "curve": [[10, 1.0, 3.0, 3.0], [20, 2.0, loss, beyond]],
    }
    return {
        "preset": "small",
        "name": name,
        "seed": seed,
        "changes": "",
        "seconds_per_step": 0.1,
        "readings": [reading],
    }


def test_the_table_pairs_seeds_and_says_what_is_recovered(tmp_path, capsys):
    rows = []
    for seed, easier in enumerate((0.0, 0.2)):
        rows += [
            row("dense", seed, 1.0 - easier, 1.0 - easier),
            row("local", seed, 2.0 - easier, 2.0 - easier),
            row("focus", seed, 1.25 - easier - 0.1 * seed, 1.25 - easier - 0.1 * seed),
        ]
    results = Results(tmp_path / "rows.jsonl", IDENTITY, ())
    for one in rows:
        results.append(one)
    figure = tmp_path / "figure.png"
    arguments = ["--runs", str(tmp_path), "--results", str(results.path), "--table", "--figure", str(figure)]
    assert main(arguments) == 0
    assert figure.stat().st_size > 1000
    printed = table(rows)
    assert printed in capsys.readouterr().out
    [focus] = [line for line in printed.splitlines() if line.startswith("| focus")]
    cells = [cell.strip() for cell in focus.strip("|").split("|")]
    # Differences .25 and .15: mean .2, half width 12.71 · .0707 / √2.
    assert cells[:3] == ["focus: focus", "2", "1.1000"]
    assert cells[7:] == ["+0.2000", "−0.4353 … +0.8353", "0.80", "+0.1647 … +1.4353"]
    [dense] = [line for line in printed.splitlines() if line.startswith("| dense")]
    assert [cell.strip() for cell in dense.strip("|").split("|")][9] == "1.00"


def test_lines_of_the_figure_pair_seeds():
    """Focus's one seed is an easy one: its line is dense attention's mean and the difference on that seed."""
    rows = [row("dense", 0, 2.0, 2.0), row("dense", 1, 1.0, 1.0), row("focus", 1, 1.25, 1.25)]
    other = row("local", 0, 9.0, 9.0) | {"changes": "attention.window=3"}
    rows[1]["readings"][0]["curve"][1][1] = 5.0
    found = list(lines([*rows, other]))
    assert [label for label, *_ in found] == ["dense", "focus"]
    (_, tokens_C, seconds_C, dense_NC), (*_, focus_NC) = found
    assert (tokens_C.tolist(), seconds_C.tolist()) == ([10, 20], [1, 2])
    assert dense_NC[:, -1].tolist() == [1.5, 1.5]
    assert focus_NC.tolist() == [[3.0, 1.75]]


def test_nothing_is_recovered_where_dense_gains_nothing():
    better, worse = ({0: {"loss_beyond_window": loss}} for loss in (1.0, 2.0))
    assert recovered(better, dense=worse, local=better) is None
    assert recovered(better, dense=better, local={1: {"loss_beyond_window": 2.0}}) is None


def test_of_what_rows_read_beyond_the_window_the_parts_are_told():
    """Two rows, window 1: the first has three distant keys, 0 to 2, the second five."""
    attention_BPS = jnp.array([[[0.1, 0.4, 0.2, 0.3, 0, 0, 0], [0.05, 0.1, 0.2, 0.05, 0.1, 0.1, 0.4]]])
    rows_BP = jnp.array([[4, 6]])
    keeps_BPS = jnp.array([[[1, 0, 0, 1, 1, 1, 1], [1, 0, 1, 0, 0, 1, 1]]], bool)
    of_groups = distant.distant(attention_BPS, keeps_BPS, rows_BP, Focus(groups=2, top_k=1, window=1))
    assert of_groups == pytest.approx((0.7 + 0.5, 0.1 + 0.25, 0.2 + 0.15, 0.4 + 0.3, 1 / 3 + 2 / 5))
    of_none = distant.distant(attention_BPS, None, rows_BP, Focus(groups=5, top_k=2, window=1))
    assert of_none.kept is None
    assert of_none.pairs_kept == pytest.approx(1 / 3 + 2 / 5)
    assert (of_none.nearest, of_none.most_read) == pytest.approx((0.2 + 0.15, 0.4 + 0.3))


def test_what_would_fail_after_training_is_refused_before(tmp_path):
    command = ["--runs", str(tmp_path), "--results", str(tmp_path / "rows.jsonl"), "--names", "dense", "--seeds", "0"]
    with pytest.raises(UserError, match=r"checkpoint.every: .* 30 is no multiple of 50"):
        main([*command, "--changes", "checkpoint.every=30"])
    with pytest.raises(UserError, match=r"--figure .*curves.jpeg"):
        main([*command, "--figure", "curves.jpeg"])
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("rows.jsonl", b"")]


@pytest.mark.slow
def test_arms_train_once_and_a_leak_is_found(tmp_path, run: Config, text: Path, monkeypatch):
    tiny = changed(run, attention={"training": "hard", "probes": 8})
    monkeypatch.setitem(quality.PRESETS, "small", lambda folder: tiny)
    results = tmp_path / "rows.jsonl"
    command = ["--runs", str(tmp_path / "runs"), "--results", str(results), "--seeds", "0", "--names"]
    assert main([*command, "dense", "focus", "published"]) == 0
    assert main([*command, "dense", "focus", "published"]) == 0
    rows = {one["name"]: one for one in Results(results, IDENTITY, ()).rows}
    assert len(results.read_text().splitlines()) == len(rows) == 3
    assert rows["dense"]["leak"] is None
    assert rows["focus"]["leak"] is None
    assert rows["published"]["leak"]
    for one in rows.values():
        [first, *_] = one["readings"]
        assert [point[0] for point in first["curve"]] == [768, 1536, 2304]
        assert first["loss_beyond_window"] == pytest.approx(first["loss"], rel=0.2)
        assert first["loss_beyond_window"] != first["loss"]
    assert rows["focus"]["kept_in_training"] > rows["focus"]["readings"][0]["kept_fraction"]
    assert dataclasses.asdict(Arm("small", "focus", 0)).items() <= rows["focus"].items()

    lengths = tmp_path / "lengths.jsonl"
    command = ["--runs", str(tmp_path / "runs"), "--results", str(lengths), "--names", "dense", "focus", "--seeds", "0"]
    assert length.main(command) == 0
    assert length.main(command) == 0
    trained, rows = rows, Results(lengths, length.IDENTITY, ()).rows
    assert [(one["name"], one["length"]) for one in rows] == [
        (name, 48 * factor) for name in ("dense", "focus") for factor in (1, 2, 4, 8)
    ]
    for one in (rows[0], rows[4]):
        assert one["loss"] == pytest.approx(trained[one["name"]]["readings"][0]["loss"], rel=1e-5)
    assert len({one["loss"] for one in rows}) == len(rows)
    assert rows[3]["loss_by_position"][-1][0] == 256
    printed = length.table(rows)
    assert f"| focus | 384 | 1 | {rows[7]['loss']:.3f} |" in printed

    read = tmp_path / "distant.jsonl"
    command = ["--runs", str(tmp_path / "runs"), "--results", str(read), "--names", "dense", "focus", "--seeds", "0"]
    assert distant.main(command) == 0
    assert distant.main(command) == 0
    dense, focus = Results(read, IDENTITY, ()).rows
    assert dense["kept"] == [None, None]
    for layer in range(2):
        assert 0 < focus["kept"][layer] <= focus["most_read"][layer] <= 1
        assert 0 < focus["nearest"][layer] <= focus["most_read"][layer]
        assert 0 < dense["nearest"][layer] <= dense["most_read"][layer] < 1
    assert f"| focus | 1 | 1 | {focus['read'][1]:.0%} | {focus['pairs_kept'][1]:.0%} | {focus['kept'][1]:.0%} |" in (
        distant.table([dense, focus])
    )

    shutil.rmtree(max((tmp_path / "runs" / "small-focus-0" / "checkpoints").glob("[0-9]*"), key=lambda p: int(p.name)))
    for command in (distant.main, length.main):
        unfinished = ["--runs", str(tmp_path / "runs"), "--results", str(tmp_path / "new.jsonl"), "--names", "focus"]
        with pytest.raises(UserError, match="no such checkpoint"):
            command([*unfinished, "--seeds", "0"])
