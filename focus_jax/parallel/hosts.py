"""The processes of a run, on one host or several: which one speaks, and how they agree.

All of them execute the same program on their parts of the same arrays. Process 0 alone writes what there is one of.
"""

import pickle
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from focus_jax.errors import UserError


def is_first() -> bool:
    """Whether this is the process that writes what there is one of."""
    return jax.process_index() == 0


def on_first[Result](act: Callable[[], Result]) -> Result:
    """What `act` returns in process 0, in all processes; it is called there alone. Raises its UserError in all."""
    if jax.process_count() == 1:
        return act()
    outcome: Any = None
    if is_first():
        try:
            outcome = act()
        except UserError as error:
            outcome = error
    message = np.frombuffer(pickle.dumps(outcome), np.uint8)
    length = int(multihost_utils.broadcast_one_to_all(np.int32(len(message))))
    sent = np.resize(message, length)
    outcome = pickle.loads(multihost_utils.broadcast_one_to_all(sent).tobytes())
    if isinstance(outcome, UserError):
        raise outcome
    return outcome


def first_else[First, Other](act: Callable[[], First], otherwise: Callable[[], Other]) -> First | Other:
    """What `act` returns in process 0, and, once it has, what `otherwise` does in each of the others. A UserError of
    `act` is raised in all."""
    mine: list[First] = []
    on_first(lambda: mine.append(act()))
    return mine[0] if mine else otherwise()


class Vote:
    """Asks all processes about something at every step, without waiting: an answer comes one step later.

    A run of one process has its answer at once.
    """

    def __init__(self) -> None:
        self._devices = Mesh(np.array(jax.devices()), ("device",))
        self._cast: Any = None
        self._any = jax.jit(
            lambda votes: votes.any(axis=0),
            out_shardings=NamedSharding(self._devices, PartitionSpec()),
        )

    def any(self, *mine: bool) -> tuple[bool, ...]:
        """For each question, whether any process said yes when it was asked last."""
        if jax.process_count() == 1:
            return mine
        answer = tuple(map(bool, np.asarray(self._cast))) if self._cast is not None else (False,) * len(mine)
        place = NamedSharding(self._devices, PartitionSpec("device"))
        votes = np.tile(np.array(mine), (jax.local_device_count(), 1))
        self._cast = self._any(jax.make_array_from_process_local_data(place, votes))
        return answer

    def forget(self) -> None:
        """Drops what has been asked and not been answered."""
        self._cast = None
