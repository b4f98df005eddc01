"""A run at Weights & Biases, as a mirror of metrics.jsonl.

A row that holds figures becomes one history row, whose W&B step follows from the row's place in metrics.jsonl alone. So
a run that is continued sends what W&B lacks and nothing twice: online, W&B says how far it has got; offline, a new and
complete log takes the place of the one before.
"""

import contextlib
import functools
import json
import re
import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Concatenate

import pydantic
import wandb

from focus_jax import config_loading
from focus_jax.config import Config
from focus_jax.errors import UserError
from focus_jax.run_folder import RunFolder
from focus_jax.telemetry import experiment, keys
from focus_jax.telemetry.metrics import Row, read_rows

ID_FILE_NAME = "wandb_id"
INIT_SECONDS, FINISH_SECONDS = 30, 60
"""What a server that does not answer may cost at the start and at the end; in between nothing waits for it."""

_PLACES_PER_STEP = 1000
_ROUTINE_EVENTS = ("started", "resumed")


def _while_alive[**P](method: Callable[Concatenate["WeightsAndBiases", P], None]):
    """Training goes on where W&B's own process is gone; what W&B lacks is sent when the run is continued."""

    @functools.wraps(method)
    def call(self: "WeightsAndBiases", *args: P.args, **kwargs: P.kwargs) -> None:
        if not self.alive:
            return
        try:
            method(self, *args, **kwargs)
        except (ConnectionError, wandb.errors.Error) as error:
            self.alive = False
            print(
                f"W&B: {error}; nothing more is sent, metrics.jsonl goes on. Continue the run to send what is missing"
            )

    return call


class WeightsAndBiases:
    """Sends rows, beginning with those that metrics.jsonl already has and W&B lacks. Never asks for anything.

    Raises UserError where `online` is wanted and no key is found, and where W&B's own id of the run, or one of its
    settings in the environment, is none. Where W&B cannot be reached, or refuses
    the run, the run goes on offline and says so.
    """

    def __init__(self, config: Config, run_folder: Path):
        if config.telemetry.wandb == "online":
            require_key("telemetry.wandb: online")
        self.alive = True
        self._upload_checkpoints = config.telemetry.wandb_checkpoints
        self._run = _start(config, run_folder)
        self._step, self._place = -1, 0
        self._seconds_per_step: dict[str, float] = {}
        for row in read_rows(RunFolder(run_folder).metrics):
            self.write(row)
        if self._run.offline:
            _remove_older_logs(self._run)

    @_while_alive
    def write(self, row: Row) -> None:
        self._note_speed(row)
        figures = keys.figures(row)
        if figures:
            self._send(row, figures)
        elif row["kind"] == "event" and row["name"] not in _ROUTINE_EVENTS and self._is_new(row):
            self._run.alert(row["name"], row["message"], level="WARN")

    @_while_alive
    def checkpoint_saved(self, step: int, folder: Path) -> None:
        """Uploads a committed checkpoint, where that is wanted."""
        if self._upload_checkpoints:
            artifact = wandb.Artifact(f"{self._run.id}-checkpoint", "checkpoint", metadata={keys.STEP: step})
            artifact.add_dir(str(folder))
            self._run.log_artifact(artifact, aliases=[f"step-{step}"])

    @_while_alive
    def close(self) -> None:
        self._run.finish()
        if self._run.offline:
            print(f"W&B: upload this run with: wandb sync {_log_folder(self._run)}")

    def _send(self, row: Row, figures: dict[str, float]) -> None:
        self._place = self._place + 1 if row["step"] == self._step else 0
        self._step = row["step"]
        wandb_step = self._step * _PLACES_PER_STEP + self._place
        if wandb_step >= self._run.starting_step:
            axes = {keys.STEP: row["step"], keys.TOKENS: row["tokens"], **self._seconds(row)}
            self._run.log(axes | figures, wandb_step)

    def _is_new(self, row: Row) -> bool:
        return row["step"] * _PLACES_PER_STEP >= self._run.starting_step

    def _note_speed(self, row: Row) -> None:
        if row["kind"] == "train" and row["step"]:
            self._seconds_per_step[row["model"]] = row["seconds"] / row["step"]

    def _seconds(self, row: Row) -> dict[str, float]:
        """Of training of the row's model so far; between its training rows at their pace."""
        pace = self._seconds_per_step.get(row.get("model", "focus"))
        return {} if pace is None else {keys.SECONDS: pace * row["step"]}


def require_key(what: str) -> None:
    """Finds the key without asking for it; UserError where `what` needs one that is missing or malformed."""
    try:
        with _settings_checked():
            found = wandb.login(prompt=False, verify=False)
    except wandb.errors.AuthenticationError as error:
        raise UserError(f"{what} needs a valid W&B key: {error}") from None
    if not found:
        raise UserError(f"{what} needs a W&B key: set WANDB_API_KEY or run `wandb login`")


@contextlib.contextmanager
def _settings_checked() -> Iterator[None]:
    """W&B also reads the environment."""
    try:
        yield
    except wandb.errors.UsageError as error:
        raise UserError(f"telemetry.wandb: {error}") from None
    except pydantic.ValidationError as error:
        problem = error.errors()[0]
        name = "_".join(["WANDB", *map(str, problem["loc"])]).upper()
        raise UserError(f"{name}: {problem['msg']} (it is {problem['input']!r})") from None


def _start(config: Config, run_folder: Path) -> Any:
    try:
        with _settings_checked():
            run = _init(config, run_folder, config.telemetry.wandb)
    except wandb.errors.CommError as error:
        print(f"W&B: it cannot be reached ({error}); this run goes on offline")
        # The failed run keeps its id taken until W&B's own process ends.
        wandb.teardown()
        run = _init(config, run_folder, "offline")
    run.define_metric(keys.TOKENS, hidden=True)
    for kind in ("train", "eval", "compare", "groups"):
        run.define_metric(f"{kind}/*", step_metric=keys.TOKENS)
    if not run.offline:
        print(f"W&B: {run.url}")
    return run


def _init(config: Config, run_folder: Path, mode: Any) -> Any:
    return wandb.init(
        mode=mode,
        resume="allow" if mode == "online" else None,
        id=_run_id(run_folder),
        name=run_folder.resolve().name,
        entity=config.telemetry.wandb_entity or None,
        project=config.telemetry.wandb_project,
        group=experiment.group(config),
        tags=experiment.tags(config),
        config=json.loads(config_loading.to_json(config)),
        allow_val_change=True,
        dir=run_folder,
        reinit="create_new",
        settings=wandb.Settings(console="off", silent=True, init_timeout=INIT_SECONDS, finish_timeout=FINISH_SECONDS),
    )


def _run_id(run_folder: Path) -> str:
    path = run_folder / ID_FILE_NAME
    if not path.exists():
        path.write_text(uuid.uuid4().hex[:16])
    run_id = path.read_text(errors="replace")
    if not re.fullmatch(r"[\w-]{1,64}", run_id, re.ASCII):
        raise UserError(f"{path}: no id of a W&B run; bring the old one back, or remove it to begin another there")
    return run_id


def _log_folder(run: Any) -> Path:
    return Path(run.dir).parent


def _remove_older_logs(run: Any) -> None:
    current = _log_folder(run)
    for older in current.parent.glob(f"offline-run-*-{run.id}"):
        if older != current:
            shutil.rmtree(older)
