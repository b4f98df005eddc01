"""The models of a run folder, read from one of its checkpoints."""

import dataclasses
from typing import NamedTuple

from jax.sharding import Mesh

from focus_jax import config
from focus_jax.data.store import TokenStore, open_store
from focus_jax.errors import UserError
from focus_jax.evaluation.checkpoint import Models
from focus_jax.run_folder import RunFolder
from focus_jax.training.checkpoints import Checkpoints, complete_steps
from focus_jax.training.learner import Learner


class TrainedRun(NamedTuple):
    run: config.Config
    store: TokenStore
    step: int
    models: Models

    @property
    def tokens(self) -> int:
        """Training tokens that each model has seen."""
        return self.step * self.run.training.batch_size * self.run.training.sequence_length


def load_trained(
    folder: RunFolder, run: config.Config, step: int | None, mesh: Mesh, only: config.ModelName | None = None
) -> TrainedRun:
    """The models (or `only` one) of a run with this config at a step, None for the newest, on a mesh that need not be
    the one they were trained on.

    Raises UserError where there is no such model or checkpoint, or the token store is not the one trained on.
    """
    if only is not None:
        if only not in run.models:
            raise UserError(f"{folder.path}: has no {only} model, only {', '.join(run.models)}")
        run = dataclasses.replace(run, models=(only,))
    if not complete_steps(folder.checkpoints):
        raise UserError(f"{folder.checkpoints}: no checkpoint yet; let the run reach its first one")
    checkpoints = Checkpoints(folder.checkpoints)
    step = step if step is not None else complete_steps(folder.checkpoints)[-1]
    models = {}
    for name in run.models:
        abstract = Learner(name, config.of_model(run, name), mesh).abstract_state()
        models[name] = checkpoints.restore_model(step, name, abstract)
    progress = checkpoints.progress(step)
    checkpoints.close()
    store = open_store(run.data, run.model.vocab_size)
    folder.check_store(progress["store"], store.identity)
    return TrainedRun(run, store, step, models)
