"""The page of one run."""

import dataclasses
import json
import re
import subprocess
import sys
from html import unescape

import pytest

from focus_jax.errors import UserError
from focus_jax.evaluation.report import write_report
from focus_jax.run_folder import RunFolder
from tests.synthetic_run import synthetic_config, write_run


def text_of(html: str) -> str:
    """What a reader reads, without style sheet and figures."""
    html = re.sub(r"<(style|svg|details).*?</\1>", " ", html, flags=re.DOTALL)
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", html)).split())


def report_of(folder) -> str:
    return write_report(folder).read_text(encoding="utf-8")


def with_last_comparison(folder, **fields):
    """Rewrites the last comparison of Focus as trained."""
    path = RunFolder(folder).metrics
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    compared = [row for row in rows if row["kind"] == "compare" and row["routing"] == "soft"]
    compared[-1].update(fields)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_the_questions_are_answered_in_their_order(tmp_path):
    html = report_of(write_run(synthetic_config(tmp_path / "run"), events=True))
    assert re.findall("<h2>(.*?)</h2>", html) == [
        "Who is ahead, and how certain is it?",
        "At which cost?",
        "How did it get there?",
        "What do the groups hold?",
        "What went wrong during the run?",
    ]
    text = text_of(html)
    assert (
        "Focus is ahead of its dense twin by 0.0387 nats per token: perplexity 13.63 against 14.16 (3.8 % lower)"
        in text
    )
    assert "95 % interval of the difference: −0.0507 … −0.0267 nats per token (64 held-out sequences" in text
    assert "not what another seed would give" in text
    assert "focus 8 min 54 s 9,200 1.29" in text
    assert "focus hard top_k=1 34 %" in text
    assert "Waiting for data: 0.2 ms a step." in text
    assert "step 300 starved group layer 2: group 5 holds 0.4 % of the tokens" in text
    assert re.findall(r"<h3>(.*?)</h3>", html) == [
        "Training loss",
        "Held-out perplexity",
        "Difference to dense",
        "Held-out perplexity by time",
        "Loss by position",
        "Difference to dense by position",
        "Largest group of each layer",
        "Tokens that changed group",
    ]


def test_losses_that_are_not_finite_are_said(tmp_path):
    folder = write_run(synthetic_config(tmp_path / "run"))
    path = RunFolder(folder).metrics
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        if row["step"] > 300 and row["kind"] in ("train", "eval"):
            row.update(loss=None, ppl=None, grad_norm=None, loss_by_position=[[0, None]])
        if row["step"] > 300 and row["kind"] == "compare":
            row.update(delta_nats=None, delta_ci95=[None, None])
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    text = text_of(report_of(folder))
    assert "these models have diverged" in text
    assert "Read as trained (focus soft) after 2,457,600 tokens" in text
    assert "focus soft 100 % not finite" in text
    path.write_text("".join(json.dumps(row) + "\n" for row in rows if row["step"] > 300))
    assert "these models have diverged" in text_of(report_of(folder))


@pytest.mark.parametrize(
    ("interval", "statement"),
    [
        ([-0.03, -0.01], "Focus is ahead of its dense twin by 0.0200 nats"),
        ([0.01, 0.03], "Focus is behind its dense twin by 0.0200 nats"),
        ([-0.01, 0.05], "Focus and its dense twin cannot be told apart"),
        (None, "Too little text to say who is ahead"),
    ],
)
def test_the_verdict_follows_the_interval(tmp_path, interval, statement):
    folder = write_run(synthetic_config(tmp_path / "run"))
    delta = sum(interval) / 2 if interval else -0.02
    with_last_comparison(folder, delta_nats=delta, delta_ci95=interval)
    assert statement in text_of(report_of(folder))


def test_the_page_needs_nothing_else_and_its_ids_are_unique(tmp_path):
    html = report_of(write_run(synthetic_config(tmp_path / "run")))
    assert "<script" not in html
    assert set(re.findall(r'(?:src|href)="([^#"][^"]*)"', html)) == {"data:,"}
    assert set(re.findall(r"https?://[^\s\"<]*", html)) == {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xlink",
    }
    ids = re.findall(r'\bid="([^"]*)"', html)
    assert len(ids) == len(set(ids))
    targets = re.findall(r'href="#([^"]*)"', html) + re.findall(r"url\(#([^)]*)\)", html)
    assert targets
    assert set(targets) <= set(ids)
    assert not re.search(r"#0000\d\d", html), "a colour of the drawing was left in the page"


def test_the_same_run_gives_the_same_page(tmp_path):
    folder = write_run(synthetic_config(tmp_path / "run"))
    assert report_of(folder) == report_of(folder)


def test_names_and_messages_are_shown_as_they_are_written(tmp_path):
    folder = write_run(synthetic_config(tmp_path / "a<b>&c"))
    with RunFolder(folder).metrics.open("a") as file:
        for name in ("started", "skipped"):
            row = {"kind": "event", "step": 600, "tokens": 1, "name": name, "message": "<script>alert(1)</script>"}
            file.write(json.dumps(row) + "\n")
    html = report_of(folder)
    assert "<title>a&lt;b&gt;&amp;c</title>" in html
    assert "<script" not in html
    assert html.count("&lt;script&gt;alert(1)") == 2


@pytest.mark.parametrize("steps_done", [1, 30, 250])
def test_an_unfinished_run_has_a_report(tmp_path, steps_done):
    text = text_of(report_of(write_run(synthetic_config(tmp_path / "run"), steps_done=steps_done)))
    if steps_done < 100:
        assert "Nothing has been evaluated yet" in text
    else:
        assert "This run is not finished: step 250 of 600" in text
        assert "Held-out text at step 200" in text


def test_a_single_model_has_a_report_without_a_comparison(tmp_path):
    text = text_of(report_of(write_run(synthetic_config(tmp_path / "run", models=("dense",)))))
    assert "Only dense was trained in this run" in text
    assert "focus − dense" not in text


def test_a_routing_that_sees_the_future_is_labelled_wherever_it_is_shown(tmp_path):
    config = synthetic_config(tmp_path / "run")
    config = dataclasses.replace(
        config,
        attention=dataclasses.replace(config.attention, balance="sinkhorn"),
        evaluation=dataclasses.replace(config.evaluation, allow_noncausal=True),
    )
    text = text_of(report_of(write_run(config)))
    assert "NOT CAUSAL: the routing of this model reads later tokens" in text
    assert "NOT CAUSAL. Focus is ahead" in text
    assert re.findall(r"focus (?:soft|hard top_k=\d(?:, log gate)?)(?! ?\(NOT CAUSAL\)|\w|,)", text) == []


def test_most_frequent_tokens_are_shown_where_they_were_logged(tmp_path):
    folder = write_run(synthetic_config(tmp_path / "run"))
    with RunFolder(folder).metrics.open("a") as file:
        row = {
            "kind": "tokens",
            "step": 600,
            "tokens": 1,
            "layer": 1,
            "group": 5,
            "top": [[" the", 0.25], ["\n", 0.125]],
            "class": "function word",
            "purity": 0.625,
            "purity_by_chance": 0.375,
        }
        file.write(json.dumps(row) + "\n")
    assert "layer 1, group 5 function word 62 % (38 %) ' the' 25 %" in text_of(report_of(folder))


def test_a_folder_that_is_no_run_is_refused_by_name(tmp_path):
    with pytest.raises(UserError, match=r"metrics\.jsonl does not exist"):
        write_report(tmp_path)
    folder = write_run(synthetic_config(tmp_path / "run"))
    (folder / "config.json").unlink()
    with pytest.raises(UserError, match=r"config\.json"):
        write_report(folder)


def test_the_command_answers_a_wrong_folder_in_one_line(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "focus_jax.evaluation.report", tmp_path], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "metrics.jsonl does not exist" in done.stderr
