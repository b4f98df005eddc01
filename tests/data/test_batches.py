"""Batches: a pure function of (seed, step), whatever the processes; windows without replacement; exact mixtures."""

import dataclasses
from collections import Counter
from itertools import islice

import numpy as np
import pytest

from focus_jax.data.batches import _Proportions, evaluation_batches, train_batches
from focus_jax.data.store import open_store
from focus_jax.data.windows import check_lengths
from focus_jax.errors import UserError
from tests.data.conftest import write_texts

T = 64


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    from focus_jax.config import Data

    folder = tmp_path_factory.mktemp("batches")
    texts = write_texts(folder / "texts")
    return open_store(
        Data(source="text", files=(str(texts / "*.txt"),), validation_fraction=0.3, store=str(folder / "store")), 257
    )


def some(store, count, *, first_step=0, seed=0, batch_size=4, sequence_length=T, **processes):
    batches = train_batches(
        store, sequence_length=sequence_length, batch_size=batch_size, seed=seed, first_step=first_step, **processes
    )
    return list(islice(batches, count))


def same(a, b):
    return all(np.array_equal(x, y) for one, other in zip(a, b, strict=True) for x, y in zip(one, other, strict=True))


def starts(store, batches):
    """Positions in the text that the sequences begin at."""
    text = store.train.read(0, store.train.tokens)
    windows = {text[i * T : i * T + T].tobytes(): i for i in range((len(text) - 1) // T)}
    return [windows[row.tobytes()] for batch in batches for row in batch.inputs_BT]


def test_targets_are_the_next_tokens(store):
    batch = some(store, 1)[0]
    assert batch.inputs_BT.shape == batch.targets_BT.shape == (4, T)
    assert batch.inputs_BT.dtype == batch.targets_BT.dtype == np.int32
    text = store.train.read(0, store.train.tokens)
    for row, start in zip(batch.targets_BT, starts(store, [batch]), strict=True):
        np.testing.assert_array_equal(row, text[start * T + 1 : start * T + T + 1])


@pytest.mark.parametrize("first_step", [1, 7, 1_000_003])
def test_resuming_is_setting_the_step(store, first_step):
    assert same(some(store, 4, first_step=first_step)[3:], some(store, 1, first_step=first_step + 3))
    if first_step < 100:
        assert same(some(store, first_step + 2)[first_step:], some(store, 2, first_step=first_step))


@pytest.mark.parametrize("process_count", [2, 4])
def test_processes_read_their_rows_of_the_same_batch(store, process_count):
    whole = some(store, 3, first_step=5)
    parts = [some(store, 3, first_step=5, part=index, parts=process_count) for index in range(process_count)]
    joined = [tuple(np.concatenate([part[n][i] for part in parts]) for i in range(2)) for n in range(3)]
    assert same(joined, whole)


def test_an_epoch_takes_every_window_once_and_the_next_in_another_order(store):
    windows = (store.train.tokens - 1) // T
    seen = starts(store, some(store, 3 * windows, batch_size=1))
    epochs = [seen[n * windows : (n + 1) * windows] for n in range(3)]
    assert all(sorted(epoch) == list(range(windows)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]
    assert epochs[0] != list(range(windows))


def test_neighbouring_seeds_share_no_order(store):
    windows = (store.train.tokens - 1) // T
    of_seed = [starts(store, some(store, 2 * windows, seed=seed, batch_size=1)) for seed in (0, 1)]
    assert of_seed[0][windows:] != of_seed[1][:windows]
    assert of_seed[0][:windows] != of_seed[1][:windows]


def test_a_sequence_longer_than_the_text(store):
    with pytest.raises(UserError, match=r"training\.sequence_length: 1000000, and the training text of .* tokens"):
        some(store, 1, sequence_length=1_000_000)


def test_lengths_can_be_checked_before_anything_starts(store):
    windows = (store.validation.tokens - 1) // T
    check_lengths(store, sequence_length=T, sequences=windows)
    with pytest.raises(UserError, match=r"training\.sequence_length"):
        check_lengths(store, sequence_length=store.train.tokens, sequences=1)
    with pytest.raises(UserError, match=r"evaluation\.sequences"):
        check_lengths(store, sequence_length=T, sequences=windows + 1)


def test_rows_that_do_not_divide_into_parts(store):
    with pytest.raises(UserError, match=r"training\.batch_size: 4 does not divide into 3 parts"):
        some(store, 1, parts=3)


class TestEvaluation:
    def sample(self, store, batch_size, sequences=10, seed=0):
        batches = list(
            evaluation_batches(store, sequence_length=T, sequences=sequences, batch_size=batch_size, seed=seed)
        )
        assert all(array.shape == (batch_size, T) and array.dtype == np.int32 for batch in batches for array in batch)
        return [np.concatenate(arrays) for arrays in zip(*batches, strict=True)]

    def test_the_sample_does_not_depend_on_the_batch_size(self, store):
        inputs, targets, documents = self.sample(store, 4)
        assert targets.shape == (12, T)
        assert (targets[10:] == -1).all()
        assert (documents[10:] == -1).all()
        for one, other in zip(self.sample(store, 10), (inputs, targets, documents), strict=True):
            np.testing.assert_array_equal(one, other[:10])
        assert not np.array_equal(self.sample(store, 10, seed=1)[0], inputs[:10])

    def test_windows_are_spread_and_do_not_overlap(self, store):
        inputs, targets, _ = self.sample(store, 10)
        text = store.validation.read(0, store.validation.tokens)
        places = [next(i for i in range(len(text)) if np.array_equal(text[i : i + T], row)) for row in inputs]
        assert (np.diff(places) >= T).all()
        assert places[0] < len(text) / 10
        assert places[-1] > len(text) * 0.85 - T
        for place, row in zip(places, targets, strict=True):
            np.testing.assert_array_equal(row, text[place + 1 : place + T + 1])

    def test_targets_know_their_document(self, store):
        windows = (store.validation.tokens - 1) // T
        _, targets, documents = (rows[:windows].ravel() for rows in self.sample(store, 5, sequences=windows))
        ends_before = np.cumsum(targets == store.eos) - (targets == store.eos)
        assert ends_before[-1] >= 2
        np.testing.assert_array_equal(documents, ends_before)

    def test_all_of_the_text_can_be_asked_for_and_no_more(self, store):
        windows = (store.validation.tokens - 1) // T
        inputs, *_ = self.sample(store, 5, sequences=windows)
        np.testing.assert_array_equal(inputs[:windows].ravel(), store.validation.read(0, windows * T))
        with pytest.raises(UserError, match=rf"evaluation\.sequences: {windows + 1} sequences of {T} tokens"):
            self.sample(store, 5, sequences=windows + 1)


class TestMixture:
    @pytest.fixture
    def mixed(self, store, tmp_path):
        """Three stores whose texts cannot be confused: capitals, digits, and small letters."""
        from focus_jax.config import Data

        folders = []
        for name, letters in (("capitals", "ABCDEFG "), ("digits", "0123456 ")):
            (tmp_path / name).mkdir()
            for number in range(2):
                (tmp_path / name / f"{number}.txt").write_text(letters * (300 + number))
            files = (str(tmp_path / name / "*"),)
            other = Data(source="text", files=files, store=str(tmp_path / f"{name}.store"))
            folders.append(open_store(other, 257).folder)
        return folders

    def counts(self, batches):
        kinds = {"A": "capitals", "0": "digits"}
        rows = [bytes(row[row < 256].astype(np.uint8)).decode() for batch in batches for row in batch.inputs_BT]
        return Counter(next((kinds[mark] for mark in kinds if mark in row), "letters") for row in rows)

    def open(self, store, weight, *mixture):
        from focus_jax.config import Data

        texts = str(store.folder.parent / "texts" / "*.txt")
        data = Data(
            source="text",
            files=(texts,),
            validation_fraction=0.3,
            store=str(store.folder),
            weight=weight,
            mixture=tuple((str(folder), weight) for folder, weight in mixture),
        )
        return open_store(data, 257)

    def test_weights_are_exact_in_every_cycle(self, store, mixed):
        opened = self.open(store, 0.7, (mixed[0], 0.2), (mixed[1], 0.1))
        batches = some(opened, 60, batch_size=5)
        assert self.counts(batches) == {"letters": 210, "capitals": 60, "digits": 30}
        for step in range(58):
            assert self.counts(batches[step : step + 2]) == {"letters": 7, "capitals": 2, "digits": 1}

    def test_it_is_seeded_resumable_and_splits_among_processes(self, store, mixed):
        opened = self.open(store, 3.0, (mixed[0], 1.0))
        whole = some(opened, 12)
        assert same(whole[9:], some(opened, 3, first_step=9))
        halves = [some(opened, 12, part=index, parts=2) for index in (0, 1)]
        assert same([tuple(map(np.concatenate, zip(*pair, strict=True))) for pair in zip(*halves, strict=True)], whole)
        assert not same(whole, some(opened, 12, seed=1))

    def test_turns_follow_from_the_seed(self):
        orders = {tuple(_Proportions([0.7, 0.2, 0.1], seed)[turn][0] for turn in range(10)) for seed in range(20)}
        assert 5 < len(orders) <= 10

    def test_each_store_is_drawn_without_replacement(self, store, mixed):
        opened = self.open(store, 3.0, (mixed[0], 1.0))
        windows = (store.train.tokens - 1) // T
        text = store.train.read(0, store.train.tokens)
        known = {text[i * T : i * T + T].tobytes() for i in range(windows)}
        rows = [row.tobytes() for batch in some(opened, windows) for row in batch.inputs_BT]
        drawn = [row for row in rows if row in known]
        for epoch in (0, 1):
            assert len(set(drawn[epoch * windows : (epoch + 1) * windows])) == windows

    def test_held_out_text_is_that_of_the_first_store(self, store, mixed):
        opened = self.open(store, 1.0, (mixed[0], 5.0))
        kwargs = {"sequence_length": T, "sequences": 8, "batch_size": 8, "seed": 0}
        assert same(evaluation_batches(opened, **kwargs), evaluation_batches(store, **kwargs))

    def test_another_tokenizer_is_refused(self, store, mixed, data):
        open_store(dataclasses.replace(data, tokenizer="trained"), 300)
        with pytest.raises(UserError, match=r"data\.mixture: .* was made by another tokenizer than"):
            self.open(store, 1.0, (data.store, 1.0))

    def test_a_store_that_is_not_there_is_refused(self, store, tmp_path):
        with pytest.raises(UserError, match=r"data\.mixture: .*nowhere is no finished token store"):
            self.open(store, 1.0, (tmp_path / "nowhere", 1.0))

    def test_a_store_shorter_than_a_sequence_is_named(self, store, mixed):
        opened = self.open(store, 1.0, (mixed[0], 1.0))
        with pytest.raises(UserError, match=r"training\.sequence_length: 5000, .*capitals\.store has only"):
            some(opened, 1, sequence_length=5000)

    @pytest.mark.parametrize("weights", [[1.0], [0.1, 0.2, 0.7], [0.7, 0.3], [1.0, 0.12345678901234], [1e-9, 1.0, 1.0]])
    def test_proportions_stay_close_to_the_weights_at_every_moment(self, weights):
        proportions = _Proportions(weights, seed=3)
        store, index = proportions[10**9]
        assert abs(index - 10**9 * weights[store] / sum(weights)) < len(weights)
        drawn = [0] * len(weights)
        for turn in range(3000):
            store, index = proportions[turn]
            assert index == drawn[store]
            drawn[store] += 1
            assert all(
                abs(count - (turn + 1) * weight / sum(weights)) < len(weights)
                for count, weight in zip(drawn, weights, strict=True)
            )
