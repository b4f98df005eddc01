import re

from focus_jax.telemetry import Telemetry
from focus_jax.telemetry.metrics import read_rows
from tests.synthetic_run import rows_of_run, synthetic_config


def drive(telemetry, rows, steps):
    by_step = {step: [row for row in rows if row["step"] == step] for step in steps}
    for step in steps:
        for row in by_step[step]:
            telemetry.write(row)
        telemetry.progress(step)
        telemetry.checkpoint_done(step)
    telemetry.close()


def test_a_run_continued_from_a_checkpoint_leaves_the_rows_of_an_uninterrupted_one(tmp_path):
    config = synthetic_config(tmp_path)
    rows = list(rows_of_run(config))
    drive(Telemetry(config, tmp_path), rows, range(1, 251))
    drive(Telemetry(config, tmp_path, resumed_step=200), rows, range(201, 601))
    assert read_rows(tmp_path / "metrics.jsonl") == rows


def test_a_run_that_starts_over_leaves_nothing_of_its_first_try(tmp_path):
    config = synthetic_config(tmp_path)
    rows = list(rows_of_run(config))
    drive(Telemetry(config, tmp_path), rows, range(1, 50))
    drive(Telemetry(config, tmp_path), rows, range(1, 30))
    assert read_rows(tmp_path / "metrics.jsonl") == [row for row in rows if row["step"] < 30]


def test_without_a_terminal_there_are_few_lines_and_a_table_for_every_checkpoint(tmp_path, capsys):
    config = synthetic_config(tmp_path)
    drive(Telemetry(config, tmp_path), list(rows_of_run(config)), range(1, 601))
    lines = capsys.readouterr().out.splitlines()
    progress = [line for line in lines if " of training left" in line]
    assert len(progress) == 20
    assert progress[9].startswith("step 300 of 600 · loss focus 2.6")
    assert re.search(r" tokens/s, 1 / 1 % of peak · data 0\.2 ms a step · ", progress[9])
    assert sum(line.startswith("checkpoint at step") for line in lines) == 6
    assert sum(line.startswith("focus hard top_k=1, log gate") for line in lines) == 6
    assert sum("for this pair of models only" in line for line in lines) == 1
