import json

import pytest

from focus_jax.errors import UserError
from focus_jax.telemetry.metrics import MetricsFile, cut_back, read_rows

TRAIN = {"kind": "train", "model": "dense", "loss": 1, "grad_norm": 1, "lr": 1, "seconds": 1, "tokens_per_second": 1}


def line(step, **fields):
    return json.dumps({**TRAIN, "step": step, "tokens": 512 * step, **fields}).encode() + b"\n"


def test_rows_are_on_disk_as_soon_as_they_are_written_and_come_back_equal(tmp_path):
    path = tmp_path / "metrics.jsonl"
    row = {"kind": "compare", "step": 3, "tokens": 96, "delta_ci95": [-0.1, 0.2], "gate": None, "message": "Größe ×2"}
    row |= {"routing": "soft", "delta_nats": 0.05}
    metrics = MetricsFile(path)
    metrics.write(row)
    assert read_rows(path) == [row]
    metrics.close()


def test_figures_that_are_not_finite_become_null_so_that_every_reader_can_read_the_file(tmp_path):
    path = tmp_path / "metrics.jsonl"
    metrics = MetricsFile(path)
    metrics.write({**TRAIN, "step": 1, "tokens": 1, "loss": float("nan"), "load": [0.5, float("inf")]})
    metrics.close()
    (row,) = read_rows(path)
    assert row["loss"] is None
    assert row["load"] == [0.5, None]


@pytest.mark.parametrize("torn", [b"", b'{"kind": "train", "st', b'{"kind": "train"}', b"\0\0\0\0"])
def test_cutting_back_drops_later_rows_and_a_torn_last_line_and_keeps_other_bytes(tmp_path, torn):
    path = tmp_path / "metrics.jsonl"
    unusual = b'{"step":2,  "tokens": 1.0e3, "kind":"event", "name": "", "message": "\xc3\xa9"}\n'
    path.write_bytes(line(1) + unusual + line(3) + line(2, late=True) + torn)
    cut_back(path, step=2)
    assert path.read_bytes() == line(1) + unusual + line(2, late=True)
    assert [p.name for p in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_a_whole_last_row_without_its_newline_is_kept(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(line(1) + line(2).rstrip(b"\n"))
    assert len(read_rows(path)) == 2
    cut_back(path, step=2)
    assert path.read_bytes() == line(1) + line(2)


def test_damage_before_the_last_line_is_named(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(line(1) + b'{"kind": "tr\n' + line(3))
    for read in (read_rows, lambda path: cut_back(path, 3)):
        with pytest.raises(UserError, match=r"metrics\.jsonl, line 2"):
            read(path)


def test_a_folder_without_metrics_is_no_run_and_has_nothing_to_cut(tmp_path):
    path = tmp_path / "metrics.jsonl"
    with pytest.raises(UserError, match=r"metrics\.jsonl does not exist.*folder of a run"):
        read_rows(path)
    cut_back(path, step=5)
    assert not path.exists()
