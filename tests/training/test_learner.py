"""A step writes the new state over the old one."""

import jax
import numpy as np

from focus_jax.model import as_trained
from focus_jax.parallel.batches import placed
from focus_jax.parallel.mesh import make_mesh
from focus_jax.training.learner import Learner
from tests.changes import changed


def test_the_old_state_is_given_up_for_the_new(run):
    run = changed(run, model={"layers": 1})
    learner = Learner("focus", run, make_mesh(run.mesh))
    learner.initialise()
    learner.compile()
    before = jax.tree.leaves(learner.state)
    tokens_BT = np.zeros((4, 49), np.int32)
    learner.dispatch(1, *placed(learner.mesh, (tokens_BT[:, :-1], tokens_BT[:, 1:])))
    assert all(array.is_deleted() for array in before)
    memory = learner.lowered(as_trained(run.attention, 0)).compile().memory_analysis()
    assert memory.alias_size_in_bytes >= sum(array.nbytes for array in before)
