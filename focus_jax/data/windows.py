"""Windows of a split: window i is tokens i·T … i·T + T, so the last target of one is the first input of the next."""

import numpy as np

from focus_jax.data.store import Split, TokenStore
from focus_jax.errors import UserError


class Windows:
    """The windows of a split, by number. Raises UserError where there is not even one."""

    def __init__(self, split: Split, sequence_length: int, name: str) -> None:
        self._split = split
        self._T = sequence_length
        self._count = max(0, (split.tokens - 1) // sequence_length)
        if not self._count:
            raise UserError(f"training.sequence_length: {sequence_length}, and {name} has only {split.tokens} tokens")

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> np.ndarray:
        return self._split.read(index * self._T, (index + 1) * self._T + 1)

    def __repr__(self) -> str:
        return f"Windows({self._count})"


def training_windows(store: TokenStore, sequence_length: int) -> Windows:
    return Windows(store.train, sequence_length, f"the training text of {store.folder}")


def held_out_windows(store: TokenStore, sequence_length: int, sequences: int) -> Windows:
    """The validation windows, at least as many as sequences are asked for; UserError where the text is too short."""
    windows = Windows(store.validation, sequence_length, f"the validation text of {store.folder}")
    if len(windows) < sequences:
        raise UserError(
            f"evaluation.sequences: {sequences} sequences of {sequence_length} tokens, and the validation text of "
            f"{store.folder} has {len(windows)}; ask for fewer, or hold out more text"
        )
    return windows


def check_lengths(store: TokenStore, *, sequence_length: int, sequences: int) -> None:
    """Refuses what train_batches and evaluation_batches would refuse, before JAX starts."""
    for part, _ in store.mixture or ((store, 1.0),):
        training_windows(part, sequence_length)
    held_out_windows(store, sequence_length, sequences)
