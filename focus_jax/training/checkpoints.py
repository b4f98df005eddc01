"""Checkpoints of a run (Orbax, asynchronous): everything that is needed to go on, model and optimizer as separate
items, so that evaluation reads only the model."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp

from focus_jax import config
from focus_jax.errors import UserError
from focus_jax.training.state import TrainState

_PROGRESS = "progress"


class Checkpoints:
    """checkpoints/STEP/ of a run. `close` returns when the last save is committed."""

    def __init__(self, folder: Path, options: config.Checkpoint):
        self._folder = folder
        self._manager = ocp.CheckpointManager(
            folder.absolute(),
            options=ocp.CheckpointManagerOptions(max_to_keep=options.keep, keep_period=options.keep_every),
        )

    def latest_step(self) -> int | None:
        return self._manager.latest_step()

    def save(self, step: int, states: Mapping[str, TrainState], progress: Mapping[str, Any]) -> None:
        """Copies the states and writes them in the background, with `progress`, whatever else the run must know."""
        items: dict[str, Any] = {_PROGRESS: ocp.args.JsonSave(dict(progress))}
        for name, state in states.items():
            items[_model(name)] = ocp.args.StandardSave(_model_part(state))
            items[_optimizer(name)] = ocp.args.StandardSave(_optimizer_part(state))
        self._manager.save(step, args=ocp.args.Composite(**items))

    def restore(self, step: int, abstract: Mapping[str, TrainState]) -> tuple[dict[str, TrainState], dict[str, Any]]:
        """The states of the models named in `abstract` (shapes, types, shardings), and the progress stored with them."""
        items: dict[str, Any] = {_PROGRESS: ocp.args.JsonRestore()}
        for name, state in abstract.items():
            items[_model(name)] = ocp.args.StandardRestore(_model_part(state))
            items[_optimizer(name)] = ocp.args.StandardRestore(_optimizer_part(state))
        found = self._restore(step, items)
        states = {name: TrainState(**found[_model(name)], **found[_optimizer(name)]) for name in abstract}
        return states, found[_PROGRESS]

    def restore_model(self, step: int, name: str, abstract: TrainState) -> tuple[Any, Any]:
        """(params, potentials) of one model, without its optimizer."""
        found = self._restore(step, {_model(name): ocp.args.StandardRestore(_model_part(abstract))})
        model = found[_model(name)]
        return model["params"], model["potentials"]

    def close(self) -> None:
        self._manager.wait_until_finished()
        self._manager.close()

    def _restore(self, step: int, items: dict[str, Any]) -> Any:
        if step not in self._manager.all_steps():
            there = ", ".join(map(str, sorted(self._manager.all_steps()))) or "none"
            raise UserError(f"{self._folder / str(step)}: no such checkpoint; there are: {there}")
        return self._manager.restore(step, args=ocp.args.Composite(**items))


def on_default_device(abstract: Any) -> Any:
    """Shapes of a state with the place where its arrays shall be restored to."""
    place = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), abstract)


def _model(name: str) -> str:
    return f"{name}.model"


def _optimizer(name: str) -> str:
    return f"{name}.optimizer"


def _model_part(state: TrainState) -> dict[str, Any]:
    return {"params": state.params, "potentials": state.potentials}


def _optimizer_part(state: TrainState) -> dict[str, Any]:
    return {"step": state.step, "opt_state": state.opt_state}
