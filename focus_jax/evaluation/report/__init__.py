"""A run, or several, as a page for people who were not there: one HTML file that needs nothing else."""

from collections.abc import Sequence
from pathlib import Path

from focus_jax.evaluation.report import page, sections, several
from focus_jax.evaluation.report.pairs import experiments_of, names_of, pairs_of
from focus_jax.evaluation.report.record import RunRecord

FILE_NAME = "report.html"


def write_report(run_folder: Path, path: Path | None = None) -> Path:
    """Writes the report of a run, finished or not, from its config.json and metrics.jsonl, into its folder unless a
    path is given; returns where.

    Raises UserError where the folder is not that of a run or has logged nothing yet.
    """
    run = RunRecord.read(run_folder)
    parts = [
        sections.who_is_ahead(run),
        sections.cost(run),
        sections.how_it_got_there(run),
        sections.what_the_groups_hold(run),
        sections.what_went_wrong(run),
        sections.configuration(run),
    ]
    return _write(path or run_folder / FILE_NAME, page.document(run.name, sections.subtitle(run), parts))


def write_comparison(run_folders: Sequence[Path], path: Path) -> Path:
    """Writes a page that compares several runs: twins trained apart, and seeds with intervals over seeds.

    Raises UserError where a folder is not that of a run, or twins were evaluated on different text.
    """
    runs = [RunRecord.read(folder) for folder in run_folders]
    pairs = pairs_of(runs)
    experiments = experiments_of(pairs)
    names = names_of(experiments)
    paired = [run for pair in pairs for run in (pair.focus, pair.dense)]
    parts = [
        several.who_is_ahead(experiments, names, [run for run in runs if run not in paired]),
        several.cost(runs),
        several.how_it_got_there(experiments, names),
        several.what_the_groups_hold(runs),
        several.what_went_wrong(runs),
    ]
    return _write(path, page.document("Focus and dense, several runs", several.subtitle(runs, experiments), parts))


def _write(path: Path, html: str) -> Path:
    path.write_text(html, encoding="utf-8")
    return path
