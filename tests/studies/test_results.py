"""The results file of a study."""

from dataclasses import dataclass

import pytest

from focus_jax.errors import UserError
from focus_jax.studies.results import Results


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"form":', "line 2 is no JSON row; remove it"),
        ('{"form": "kind", "loss": 1}', "line 2 is no row of this study: it has no seed, accuracy; name another file"),
        ("\udcff", "line 2 is no JSON row; remove it"),
        ("3", "line 2 is no row of this study: it has no form, seed, accuracy; name another file"),
    ],
)
def test_a_line_that_is_no_row_is_named(line, message, tmp_path):
    (tmp_path / "rows.jsonl").write_text(
        '{"form": "kind", "seed": 0, "accuracy": 1}\n' + line, errors="surrogateescape"
    )
    with pytest.raises(UserError, match=rf"rows\.jsonl: {message}"):
        Results(tmp_path / "rows.jsonl", ("form", "seed"), ("accuracy",))


@dataclass(frozen=True)
class Arm:
    seed: int


def test_a_last_line_without_its_end_is_ended(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"seed": 0, "accuracy": 1}')
    results = Results(path, ("seed",), ("accuracy",))
    [missing] = results.missing([Arm(0), Arm(1)])
    results.append({"seed": missing.seed, "accuracy": 0})
    assert [row["seed"] for row in Results(path, ("seed",), ("accuracy",)).rows] == [0, 1]


def test_a_file_that_cannot_be_written_is_found_before_anything_is_run(tmp_path):
    (tmp_path / "file").touch()
    results = Results(tmp_path / "file" / "rows.jsonl", ("seed",), ("accuracy",))
    with pytest.raises(OSError, match="file"):
        next(results.missing([Arm(0)]))
