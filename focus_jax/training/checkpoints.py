"""Checkpoints of a run (Orbax, asynchronous): everything that is needed to go on, model and optimizer as separate
items, so that evaluation reads only the model.

A checkpoint is complete when its manifest is written, which comes last. So a kill at any moment leaves complete ones
and remains: a folder that Orbax has not renamed yet (removed at the next start), or one without a manifest.
"""

import contextlib
import logging
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import jax
import orbax.checkpoint as ocp

from focus_jax import config
from focus_jax.errors import DISK_FULL, CannotWrite, UserError
from focus_jax.parallel.hosts import is_first, on_first
from focus_jax.training import manifest
from focus_jax.training.state import TrainState

States = Mapping[config.ModelName, TrainState]
"""Of every model of a run; abstract ones have shapes, types and shardings for arrays."""

_PROGRESS = "progress"
# The newest of all are kept, those saved by wall time among them, so that there is one to go back to.
_NEWEST = 2

# Orbax logs every error that it raises, with its traceback.
logging.getLogger("absl").setLevel(logging.CRITICAL)


class Unusable(NamedTuple):
    """A checkpoint that the run cannot go on from."""

    step: int
    problem: str
    """Begins with the file, or the array."""
    complete: bool
    """False where it was never completed."""


class Checkpoints:
    """checkpoints/STEP/ of a run; without `options` only to be read."""

    def __init__(self, folder: Path, options: config.Checkpoint | None = None):
        self._folder = folder
        if options is not None:
            folder.mkdir(parents=True, exist_ok=True)
        self._manager = ocp.CheckpointManager(
            folder.absolute(),
            options=ocp.CheckpointManagerOptions(read_only=True)
            if options is None
            else ocp.CheckpointManagerOptions(cleanup_tmp_directories=True, preservation_policy=_Kept(options)),
        )
        self._background = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._saving: Future[int] | None = None

    def newest_usable(self, abstract: States, before: int | None = None) -> tuple[int | None, list[Unusable]]:
        """The newest checkpoint (before a step) that is whole and of these models, None if there is none, and the
        newer ones that are not. Reads every file of the checkpoint."""
        arrays = {name: kind for model, state in abstract.items() for name, kind in _arrays_of(model, state).items()}
        unusable: list[Unusable] = []
        for step in sorted(self._steps(), reverse=True):
            if before is not None and step >= before:
                continue
            problem = manifest.problem(self._folder / str(step), arrays)
            if problem is None:
                return step, unusable
            unusable.append(Unusable(step, problem, manifest.is_complete(self._folder / str(step))))
        return None, unusable

    def set_aside(self, step: int) -> Path:
        """Makes room for another checkpoint of this step; returns where the old one is."""
        aside = self._folder / f"{step}.unusable"
        number = 1
        while aside.exists():
            number += 1
            aside = self._folder / f"{step}.unusable.{number}"
        on_first(lambda: (self._folder / str(step)).rename(aside))
        self._manager.reload()
        return aside

    def save(self, step: int, states: States, progress: Mapping[str, Any]) -> None:
        """Copies the states and writes them in the background, with `progress`, whatever else the run must know.
        To be called when no other save is under way."""
        items: dict[str, Any] = {_PROGRESS: ocp.args.JsonSave(dict(progress))}
        arrays: dict[str, str] = {}
        for name, state in states.items():
            items[_model(name)] = ocp.args.StandardSave(_model_part(state))
            items[_optimizer(name)] = ocp.args.StandardSave(_optimizer_part(state))
            arrays |= _arrays_of(name, state)
        with self._failures():
            self._manager.save(step, args=ocp.args.Composite(**items))
        self._saving = self._background.submit(self._complete, step, arrays)

    def committed(self) -> int | None:
        """The step of a save that has been completed since this was asked last. Raises CannotWrite if one failed."""
        return self.wait() if self._saving is not None and self._saving.done() else None

    def wait(self) -> int | None:
        """`committed`, after the save that is under way."""
        saving, self._saving = self._saving, None
        with self._failures():
            return None if saving is None else saving.result()

    def restore(self, step: int, abstract: States) -> tuple[dict[config.ModelName, TrainState], dict[str, Any]]:
        """The states of the models named in `abstract`, and the progress stored with them; of a step that is usable."""
        items: dict[str, Any] = {_PROGRESS: ocp.args.JsonRestore()}
        for name, state in abstract.items():
            items[_model(name)] = ocp.args.StandardRestore(_model_part(state))
            items[_optimizer(name)] = ocp.args.StandardRestore(_optimizer_part(state))
        found = self._manager.restore(step, args=ocp.args.Composite(**items))
        states = {name: TrainState(**found[_model(name)], **found[_optimizer(name)]) for name in abstract}
        return states, found[_PROGRESS]

    def restore_model(self, step: int, name: str, abstract: TrainState) -> tuple[Any, Any]:
        """(params, carried) of one model, without its optimizer. Raises UserError where they cannot be used."""
        there = complete_steps(self._folder)
        if step not in self._steps():
            raise UserError(f"{self._folder / str(step)}: no such checkpoint; there are: {_listed(there)}")
        arrays = _arrays(_model(name), _model_part(abstract))
        if problem := manifest.problem(self._folder / str(step), arrays, item=f"{_model(name)}/"):
            others = _listed([other for other in there if other != step])
            raise UserError(f"{self._folder / str(step)}: {problem}; name another with --step; there are: {others}")
        items = {_model(name): ocp.args.StandardRestore(_model_part(abstract))}
        model = self._manager.restore(step, args=ocp.args.Composite(**items))[_model(name)]
        return model["params"], model["carried"]

    def progress(self, step: int) -> dict[str, Any]:
        """What was stored beside the states of a step that is usable."""
        return self._manager.restore(step, args=ocp.args.Composite(**{_PROGRESS: ocp.args.JsonRestore()}))[_PROGRESS]

    def close(self) -> None:
        """After the save that is under way. Raises CannotWrite if it failed."""
        try:
            self.wait()
        finally:
            self._background.shutdown()
            # Orbax tells every thread of a failure, but `wait` has told it.
            with contextlib.suppress(OSError, ValueError):
                self._manager.close()

    @contextlib.contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError) as error:
            # TensorStore raises ValueError, with the system's error in its message.
            for remains in self._folder.glob(f"*{ocp.utils.TMP_DIR_SUFFIX}*"):
                shutil.rmtree(remains, ignore_errors=True)
            raise CannotWrite(f"{self._folder}: a checkpoint could not be saved: {_reason(error)}") from None

    def _steps(self) -> list[int]:
        return sorted(self._manager.all_steps(read=True))

    def _complete(self, step: int, arrays: Mapping[str, str]) -> int:
        # Every process writes its arrays, and Orbax's commit in the first one comes after all of them.
        self._manager.wait_until_finished()
        if is_first():
            manifest.write(self._folder / str(step), arrays)
        return step


class _Kept:
    """Which checkpoints stay when one has been saved: Orbax's PreservationPolicy."""

    def __init__(self, options: config.Checkpoint):
        self._options = options

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> Sequence[bool]:
        steps = [checkpoint.step for checkpoint in checkpoints]
        by_step = [step for step in steps if step % self._options.every == 0]
        kept = {*steps[-_NEWEST:], *by_step[-self._options.keep :]}
        for_good = self._options.keep_every
        return [step in kept or (for_good is not None and step % for_good == 0) for step in steps]


def complete_steps(folder: Path) -> list[int]:
    """Steps of the checkpoints in a folder that were completed, ascending."""
    there = [path for path in folder.iterdir() if path.name.isdigit()] if folder.is_dir() else []
    return sorted(int(path.name) for path in there if manifest.is_complete(path))


def _model(name: str) -> str:
    return f"{name}.model"


def _optimizer(name: str) -> str:
    return f"{name}.optimizer"


def _model_part(state: TrainState) -> dict[str, Any]:
    return {"params": state.params, "carried": state.carried}


def _optimizer_part(state: TrainState) -> dict[str, Any]:
    return {"step": state.step, "opt_state": state.opt_state, "guard": state.guard}


def _arrays_of(name: str, state: TrainState) -> dict[str, str]:
    return _arrays(_model(name), _model_part(state)) | _arrays(_optimizer(name), _optimizer_part(state))


def _arrays(item: str, tree: Any) -> dict[str, str]:
    """Shape and type of every array, by name."""
    return {
        f"{item}.{jax.tree_util.keystr(path, simple=True, separator='.')}": f"{leaf.dtype}{list(leaf.shape)}"
        for path, leaf in jax.tree.leaves_with_path(tree)
    }


def _listed(steps: Sequence[int]) -> str:
    return ", ".join(map(str, steps)) or "none"


def _reason(error: Exception) -> str:
    """The system's own words, where the error has them."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    known = (os.strerror(number) for number in DISK_FULL)
    return next((words for words in known if words in str(error)), str(error).splitlines()[0])
