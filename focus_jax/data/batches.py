"""Batches of windows: T + 1 consecutive tokens of a split, of which T are inputs and T are targets.

Documents within a window are joined by the end-of-document token, and attention crosses them.
Letters: B sequences of a batch, T tokens of a sequence, S = T + 1.
"""

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import NamedTuple

import grain
import numpy as np

from focus_jax.data.store import Split, TokenStore
from focus_jax.data.windows import Windows, held_out_windows, training_windows
from focus_jax.errors import UserError

# One reading thread, a few batches ahead: reading takes a small part of a core, and order does not depend on it.
READ = grain.ReadOptions(num_threads=1, prefetch_buffer_size=4)
# Windows in an endless sequence. Grain's own endless length overflows in its batching.
ENDLESS = 2**48


class Batch(NamedTuple):
    """Training sequences: targets are the next tokens."""

    inputs_BT: np.ndarray
    targets_BT: np.ndarray


class Place(NamedTuple):
    """Where a training sequence stands: window number `window` (of T tokens, from 0) of a store's training text."""

    store: str
    window: int


class EvaluationBatch(NamedTuple):
    """Held-out sequences; where there is no target it is −1, and so is its document."""

    inputs_BT: np.ndarray
    targets_BT: np.ndarray
    documents_BT: np.ndarray
    """Number of the document in the validation text that the target belongs to."""


def train_batches(
    store: TokenStore,
    *,
    sequence_length: int,
    batch_size: int,
    seed: int,
    first_step: int,
    part: int = 0,
    parts: int = 1,
) -> Iterator[Batch]:
    """Endless batches from `first_step` on. Batch n is a pure function of (seed, n), computed at no cost for any n.

    Windows are drawn without replacement within an epoch, in an order that is computed, not stored. Of `parts` equal
    parts of every batch, this is number `part`: rows [part·B/parts, (part + 1)·B/parts); no others are read. With a
    mixture, windows come from the stores in exactly the proportions of their weights.

    Raises UserError where a store is shorter than one sequence, or the rows do not divide into the parts.
    """
    if batch_size % parts:
        raise UserError(f"training.batch_size: {batch_size} does not divide into {parts} parts")
    windows = _in_order([training_windows(source, sequence_length) for source, _ in _parts(store)], store, seed)
    # Batch n·P + p of B/P rows is part p of batch n.
    rows = windows.batch(batch_size // parts)[part::parts][first_step:]
    return iter(rows.map(_split_window).to_iter_dataset(READ))


def places(store: TokenStore, *, sequence_length: int, batch_size: int, seed: int, number: int) -> list[Place]:
    """Where the sequences of batch `number` (from 0) stand, in their order."""
    windows = [_Places(part, sequence_length) for part, _ in _parts(store)]
    order = _in_order(windows, store, seed)
    return [order[index] for index in range(number * batch_size, (number + 1) * batch_size)]


def evaluation_batches(
    store: TokenStore, *, sequence_length: int, sequences: int, batch_size: int, seed: int
) -> Iterator[EvaluationBatch]:
    """A fixed sample of held-out windows: one from each of `sequences` equal stretches of the validation text.

    The sample and its order depend on the sequence length, the number of sequences and the seed, not on `batch_size`;
    the last batch is filled up with rows without targets. Raises UserError where the validation text is too short.
    """
    windows = held_out_windows(store, sequence_length, sequences)
    edges = np.arange(sequences + 1) * len(windows) // sequences
    chosen = np.random.default_rng(seed).integers(edges[:-1], edges[1:])
    return (
        _evaluation_batch(store.validation, windows, chosen[start : start + batch_size], batch_size)
        for start in range(0, sequences, batch_size)
    )


class _Places:
    """The windows of a store by their places alone."""

    def __init__(self, store: TokenStore, sequence_length: int) -> None:
        self._folder = str(store.folder)
        self._count = len(training_windows(store, sequence_length))

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Place:
        return Place(self._folder, index)


def _parts(store: TokenStore) -> tuple[tuple[TokenStore, float], ...]:
    return store.mixture or ((store, 1.0),)


def _in_order(windows: Sequence[Windows | _Places], store: TokenStore, seed: int) -> grain.MapDataset:
    """The training sequences of a run one after the other, from the windows of each store that it draws from."""
    shuffled = [_endless(part, _seed_of(seed, number)) for number, part in enumerate(windows)]
    if not store.mixture:
        return shuffled[0]
    weights = [weight for _, weight in store.mixture]
    return grain.MapDataset.select_from_datasets(shuffled, _Proportions(weights, seed))


def _endless(windows: Windows | _Places, seed: int) -> grain.MapDataset:
    """Epoch after epoch, each in another order."""
    return grain.MapDataset.source(windows).shuffle(seed=seed).repeat(ENDLESS // len(windows) + 1)


class _Proportions(grain.transforms.DatasetSelectionMap):
    """Whose turn it is: spread evenly, never more than the number of stores away from the exact proportions of the
    weights, and equal to them after every full cycle. (Grain's own mixing rounds the weights.)"""

    def __init__(self, weights: list[float], seed: int) -> None:
        exact = [Fraction(repr(weight)) for weight in weights]
        unit = Fraction(math.gcd(*(e.numerator for e in exact)), math.lcm(*(e.denominator for e in exact)))
        self._shares = [int(e / unit) for e in exact]
        self._first_turn = _seed_of(seed, len(weights)) % sum(self._shares)
        self._before_first = self._draws(self._first_turn)

    def __len__(self) -> int:
        return ENDLESS

    def __getitem__(self, index: int) -> tuple[int, int]:
        before, after = self._draws(self._first_turn + index), self._draws(self._first_turn + index + 1)
        store = next(store for store, drawn in enumerate(after) if drawn > before[store])
        return store, before[store] - self._before_first[store]

    def _draws(self, turns: int) -> list[int]:
        """How often each store has been drawn from: the first takes its share, the next its share of what is left, …"""
        draws = []
        shares_left = sum(self._shares)
        for share in self._shares:
            turns_left = turns * (shares_left - share) // shares_left
            draws.append(turns - turns_left)
            turns, shares_left = turns_left, shares_left - share
        return draws


def _seed_of(seed: int, stream: int) -> int:
    """Grain reaches the next epoch's order by adding 1, so neighbouring seeds would share their orders."""
    return int(np.random.SeedSequence([seed, stream]).generate_state(1)[0])


def _split_window(tokens_BS: np.ndarray) -> Batch:
    return Batch(np.ascontiguousarray(tokens_BS[:, :-1]), np.ascontiguousarray(tokens_BS[:, 1:]))


def _evaluation_batch(split: Split, windows: Windows, chosen: np.ndarray, batch_size: int) -> EvaluationBatch:
    tokens_BS = np.stack([windows[int(index)] for index in chosen])
    T = tokens_BS.shape[1] - 1
    documents_BT = split.document_of(chosen[:, None] * T + np.arange(1, T + 1))
    rows = ((0, batch_size - len(chosen)), (0, 0))
    return EvaluationBatch(
        inputs_BT=np.pad(tokens_BS[:, :-1], rows),
        targets_BT=np.pad(tokens_BS[:, 1:], rows, constant_values=-1),
        documents_BT=np.pad(documents_BT, rows, constant_values=-1),
    )
