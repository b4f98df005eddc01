import dataclasses

from focus_jax.telemetry.table import comparison_table
from tests.synthetic_run import rows_of_run, synthetic_config


def last_checkpoint(config):
    return [row for row in rows_of_run(config) if row["step"] == config.training.steps]


def test_every_reading_has_a_line_with_its_figures_under_their_headings(tmp_path):
    heading, dense, *readings = comparison_table(last_checkpoint(synthetic_config(tmp_path))).splitlines()
    assert len(readings) == 5
    assert dense.split() == ["dense", "2.651", "0.021", "14.16", "1.234", "100", "%", "2.951", "2.601"]
    soft = readings[0]
    for column, figure in {
        "loss": "2.612",
        "pairs": "100 %",
        "focus − dense": "−0.0387",
        "95 % interval": "−0.0507 … −0.0267",
    }.items():
        end = heading.index(column) + len(column)
        assert soft[:end].endswith(figure)
    assert [line[: line.index("  ")] for line in readings[:3]] == [
        "focus soft",
        "focus hard top_k=1",
        "focus hard top_k=1, log gate",
    ]


def test_a_routing_that_sees_the_future_is_labelled(tmp_path):
    config = synthetic_config(tmp_path)
    config = dataclasses.replace(config, attention=dataclasses.replace(config.attention, balance="sinkhorn"))
    dense, *readings = comparison_table(last_checkpoint(config)).splitlines()[1:]
    assert "NOT CAUSAL" not in dense
    assert all("(NOT CAUSAL)" in line for line in readings)


def test_a_single_model_has_no_columns_of_difference(tmp_path):
    table = comparison_table(last_checkpoint(synthetic_config(tmp_path, models=("dense",))))
    assert len(table.splitlines()) == 2
    assert "focus" not in table


def test_too_few_documents_for_an_interval_is_said(tmp_path):
    rows = [
        row | {"delta_ci95": None} if row["kind"] == "compare" else row
        for row in last_checkpoint(synthetic_config(tmp_path))
    ]
    assert comparison_table(rows).count("too few documents") == 5
