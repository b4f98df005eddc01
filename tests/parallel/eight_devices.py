"""Trains one model on several meshes of up to eight fake CPU devices, and prints what came out as JSON.

    python -m tests.parallel.eight_devices CONFIG.json STEPS 1,1,1 2,2,2 …

Its own process: the number of CPU devices is fixed when JAX starts, and all other tests have one. Everything is
compared with the first mesh.
"""

import json
import math
import os
import sys
from pathlib import Path

os.environ["JAX_NUM_CPU_DEVICES"] = "8"

import jax
import numpy as np

from focus_jax import routing
from focus_jax.config import Config, Dense, Focus, Mesh
from focus_jax.config_loading import read_json
from focus_jax.model import as_trained
from focus_jax.parallel.batches import batch_sharding, placed
from focus_jax.parallel.mesh import make_mesh
from focus_jax.training.learner import Learner
from focus_jax.training.state import merge


def main() -> None:
    run, steps = read_json(Path(sys.argv[1])), int(sys.argv[2])
    rng = np.random.default_rng(0)
    shape = (steps, run.training.batch_size, run.training.sequence_length + 1)
    tokens = rng.integers(0, run.model.vocab_size, shape, dtype=np.int32)
    # Targets are missing unevenly, so that a mean over devices would not be the mean over tokens.
    targets = tokens[:, :, 1:].copy()
    targets[:, 0, 7:] = targets[:, -1, :3] = -1
    first = None
    outcomes = {}
    for sizes in sys.argv[3:]:
        values = _train(run, sizes, tokens[:, :, :-1], targets)
        first = first or values
        outcomes[sizes] = {
            "losses": values["losses"],
            "router_losses": values["router_losses"],
            "grad_norms": values["grad_norms"],
            "gradients": _largest_difference(first["gradients"], values["gradients"]),
            "carried": _largest_difference(first["carried"], values["carried"]),
            **_assignments(run, first["log_affinities"], values["log_affinities"]),
        }
    print(json.dumps(outcomes))


def _train(run: Config, sizes: str, inputs: np.ndarray, targets: np.ndarray) -> dict:
    data, fsdp, tensor = map(int, sizes.split(","))
    mesh = make_mesh(Mesh(data=data, fsdp=fsdp, tensor=tensor), jax.devices()[: math.prod((data, fsdp, tensor))])
    name = "dense" if isinstance(run.attention, Dense) else "focus"
    learner = Learner(name, run, mesh)
    learner.initialise()
    learner.compile()
    log_affinities = _log_affinities(learner, inputs[0])
    losses, router_losses, grad_norms, gradients, carried = [], [], [], None, None
    for number in range(len(inputs)):
        metrics = learner.dispatch(number + 1, *placed(mesh, (inputs[number], targets[number]))).metrics
        losses.append(float(metrics.loss))
        router_losses.append(float(metrics.router_loss or 0))
        grad_norms.append(float(metrics.grad_norm))
        if number == 0:
            # After one step the first moments are the gradients, times 1 − beta1 and what they were clipped by.
            (adam,) = (part for part in learner.state.opt_state if hasattr(part, "mu"))
            gradients, carried = jax.device_get((adam.mu, learner.state.carried))
    return {
        "losses": losses,
        "router_losses": router_losses,
        "grad_norms": grad_norms,
        "gradients": gradients,
        "carried": carried,
        "log_affinities": log_affinities,
    }


def _log_affinities(learner: Learner, inputs_BT: np.ndarray) -> list[np.ndarray]:
    """Of the first batch, at the initial values, for every Focus layer."""
    reading = as_trained(learner.run.attention, 0)

    def look(state, inputs_BT):
        model = merge(learner.graph, state.params, state.carried)
        return [layer.log_affinity_BTK for layer in model.features(inputs_BT, reading)[1]]

    with jax.set_mesh(learner.mesh):
        placed_BT = jax.device_put(inputs_BT, batch_sharding(learner.mesh))
        return [np.asarray(a_BTK) for a_BTK in jax.jit(look)(learner.state, placed_BT)]


def _largest_difference(one: object, other: object) -> float:
    """Over all arrays, as a share of the array's largest value."""
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return max((float(np.max(np.abs(a - b)) / max(np.max(np.abs(a)), 1e-12)) for a, b in pairs), default=0.0)


def _assignments(run: Config, one: list[np.ndarray], other: list[np.ndarray]) -> dict:
    """Tokens, over all layers, that are assigned otherwise: to another best group, or reading other groups. All of
    them, and those for which that was no close call; and the closest call there is."""
    if isinstance(run.attention, Dense):
        return {"assigned_otherwise": 0, "clearly_assigned_otherwise": 0, "smallest_margin": math.inf}
    differ = clearly = 0
    smallest = math.inf
    for a_BTK, b_BTK in zip(one, other, strict=True):
        margin_BT = np.minimum(_margin(a_BTK, 1), _margin(a_BTK, run.attention.top_k))
        differs_BT = np.any(_groups(run.attention, a_BTK) != _groups(run.attention, b_BTK), axis=-1)
        differ += int(differs_BT.sum())
        clearly += int((differs_BT & (margin_BT >= 1e-5)).sum())
        smallest = min(smallest, float(margin_BT.min()))
    return {"assigned_otherwise": differ, "clearly_assigned_otherwise": clearly, "smallest_margin": smallest}


def _groups(focus: Focus, log_affinity_BTK: np.ndarray) -> np.ndarray:
    """The best group, and in any order those that a query reads."""
    groups_BTM, best_BT1 = routing.memberships(log_affinity_BTK, top_k=focus.top_k, kind="query")
    return np.concatenate([best_BT1, np.sort(groups_BTM, axis=-1)], axis=-1)


def _margin(log_affinity_BTK: np.ndarray, rank: int) -> np.ndarray:
    """How far the affinity of this rank is above the next, (B, T)."""
    descending_BTK = -np.sort(-np.exp(log_affinity_BTK), axis=-1)
    return descending_BTK[..., rank - 1] - descending_BTK[..., rank]


if __name__ == "__main__":
    main()
