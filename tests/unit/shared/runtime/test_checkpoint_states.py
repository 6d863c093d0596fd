"""Kept features outlive any steps, checkpoints, kills and returns: they are those of an undisturbed run, bit for bit."""

import errno
import os
from contextlib import contextmanager, suppress
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.checkpoint import CheckpointName, CheckpointStore, LocalFiles
from shared.errors import StorageError
from shared.model.spec import TensorSpec
from shared.runtime.checkpoint_states import PartFiles, load_states
from shared.training.copied_features import MOST_WHOLES
from shared.training.held_state import KEPT, CopiedPart
from shared.training.kept_features import KeptFeatures
from tests.support.examples import examples

SAMPLES = 12
SPECS = {0: TensorSpec((4, 500), torch.float32), 1: TensorSpec((4, 3), torch.bfloat16)}
WHOLE = SAMPLES * (500 * 4 + 3 * 2)
HEAD_BYTES, MOST_CALLS = 700, 14
"""More than the head of an increment takes, and than a checkpoint takes of the calls that may be its last."""


class KilledError(BaseException):
    """Stands for SIGKILL: nothing of ours goes on behind it."""


@contextmanager
def failing(call, error):
    """Raise an error at one of the calls by which files are written, take their places and are removed."""
    left = [call]

    def counted(real):
        def counts(*arguments, **more):
            left[0] -= 1
            if left[0] == 0:
                raise error
            return real(*arguments, **more)

        return counts

    with (
        patch.object(os, "fsync", counted(os.fsync)),
        patch.object(Path, "replace", counted(Path.replace)),
        patch.object(Path, "unlink", counted(Path.unlink)),
    ):
        yield


class Worker:
    """A worker that keeps features, its disk, and what each of its checkpoints must have."""

    def __init__(self, folder, keep):
        self.store, self.lineage, self.step = CheckpointStore(LocalFiles(folder), keep), 1, 0
        self.expected = {}
        self.begin({})

    def begin(self, state):
        self.kept = KeptFeatures(SAMPLES)
        self.kept.put_back(state)
        self.kept.begin("one", SPECS)

    def train(self, samples):
        self.step += 1
        for slot, spec in SPECS.items():
            features = torch.randn(len(samples), *spec.shape[1:], generator=torch.Generator().manual_seed(self.step))
            self.kept.keep(slot, torch.tensor(samples, dtype=torch.int64), features.to(spec.dtype))

    def checkpoint(self):
        self.step += 1
        name = CheckpointName(self.lineage, self.step)
        self.expected[name] = contents(self.kept)
        files = PartFiles(CopiedPart({"0/parameter/weight": torch.ones(1)}, self.kept.copy()), self.store)
        files.save(self.store, name, {})
        self.store.prune()
        return files

    def resume(self):
        self.lineage += 1
        whole = [name for name in self.store.names() if self.store.is_whole(name)]
        self.begin(self.state(whole[0]) if whole else {})
        assert_same(contents(self.kept), self.expected[whole[0]] if whole else contents(KeptFeatures(SAMPLES)))

    def state(self, name):
        return load_states(self.store, name, [0, KEPT]).get(KEPT, {})


def contents(kept):
    kept.begin("one", SPECS)
    there = [kept.rows(slot, torch.arange(SAMPLES)) for slot in SPECS]
    return [(rows[flags], flags) for rows, flags in there]


def assert_same(found, expected):
    for one, other in zip(found, expected, strict=True):
        assert all(map(torch.equal, one, other))


CALLS = st.integers(1, MOST_CALLS)
ACTIONS = st.one_of(
    st.tuples(st.just("train"), st.lists(st.integers(0, SAMPLES - 1), min_size=1, max_size=4, unique=True)),
    st.tuples(st.just("checkpoint"), st.none()),
    st.tuples(st.just("killed"), CALLS),
    st.tuples(st.just("full"), CALLS),
    st.tuples(st.just("resume"), st.none()),
)


@settings(max_examples=examples(150), deadline=None)
@given(actions=st.lists(ACTIONS, max_size=40), keep=st.integers(1, 3))
def test_what_is_kept_outlives_any_order_of_steps_checkpoints_kills_and_returns(tmp_path_factory, actions, keep):
    worker = Worker(tmp_path_factory.mktemp("disk"), keep)
    for action, drawn in actions:
        before = [name for name in worker.store.names() if worker.store.is_whole(name)]
        match action:
            case "train":
                worker.train(drawn)
            case "checkpoint":
                worker.checkpoint()
                assert worker.store.is_whole(CheckpointName(worker.lineage, worker.step))
            case "full":
                with failing(drawn, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))), suppress(StorageError):
                    worker.checkpoint()
            case "killed":
                with failing(drawn, KilledError()), suppress(KilledError):
                    worker.checkpoint()
                worker.resume()
            case "resume":
                worker.resume()
        there = worker.store.names()
        assert not before or any(name >= before[0] and worker.store.is_whole(name) for name in there)
        for name in filter(worker.store.is_whole, there):
            other = KeptFeatures(SAMPLES)
            other.put_back(worker.state(name))
            assert_same(contents(other), worker.expected[name])
    worker.checkpoint()
    assert all(map(worker.store.is_whole, worker.store.names()))
    increments = {increment for increment in worker.store.files.names() if increment.endswith(".increment.safetensors")}
    assert len(worker.store.files.names()) == 2 * len(worker.store.names()) + len(increments)


def test_a_checkpoint_writes_what_has_changed_and_all_again_past_twice_the_whole(tmp_path):
    worker, written = Worker(tmp_path, 2), []
    worker.train(range(SAMPLES))
    worker.checkpoint()
    for number in range(40):
        worker.train([number % SAMPLES, (number + 5) % SAMPLES])
        files = worker.checkpoint()
        written.append(len(files.increments.more))
        increments = sum(
            size for name, size in worker.store.files.sizes().items() if name.endswith(".increment.safetensors")
        )
        assert increments <= 2 * MOST_WHOLES * WHOLE, "of those in use, and of those before that the last but one needs"
    changed = WHOLE // 6
    assert all(size <= changed + HEAD_BYTES or size >= WHOLE for size in written)
    assert sum(size >= WHOLE for size in written) >= 1


def test_a_checkpoint_without_its_increment_is_not_whole_and_its_blocks_can_be_read(tmp_path):
    worker = Worker(tmp_path, 2)
    worker.train([1])
    worker.checkpoint()
    (name,) = worker.store.names()
    (increment,) = tmp_path.glob("*.increment.safetensors")
    increment.write_bytes(increment.read_bytes()[:-1])
    assert not worker.store.is_whole(name)
    assert load_states(worker.store, name, [0]).keys() == {0}
    with pytest.raises(
        StorageError, match=rf"{increment.name}, an increment of checkpoints, is missing, or not what was written"
    ):
        load_states(worker.store, name, [0, KEPT])


def test_an_increment_that_is_damaged_when_all_are_folded_costs_one_checkpoint(tmp_path):
    worker, failed = Worker(tmp_path, 2), 0
    worker.train(range(SAMPLES))
    worker.checkpoint()
    (increment,) = tmp_path.glob("*.increment.safetensors")
    increment.unlink()
    for _ in range(SAMPLES + 4):
        worker.train([0])
        try:
            worker.checkpoint()
        except StorageError:
            failed += 1
    assert failed == 1
    worker.resume()
