"""A checkpoint copies what has changed since the one before it; all increments have at most twice the bytes of what is kept."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shared.checkpoint import MAX_INCREMENTS, Increment
from shared.errors import StorageError
from shared.model.spec import TensorSpec
from shared.training.copied_features import MOST_WHOLES, folded
from shared.training.kept_features import KeptFeatures

SPECS = {0: TensorSpec((4, 3), torch.float32), 2: TensorSpec((4, 2, 2), torch.bfloat16)}
SAMPLES, ROW_BYTES = 40, 3 * 4 + 4 * 2 + 2 * 8  # with the number of the sample in each slot


class Disk:
    """A disk on which copies are written, and the bytes that each copy, and each increment, took."""

    def __init__(self, kept):
        self.kept, self.files, self.copied, self.took, self.increments = kept, {}, [], [], ()

    def write(self, fails=False):
        copied = self.kept.copy()
        self.copied.append(bytes_of(copied.rows))
        if fails:
            return
        rows, increments = copied.rows, copied.increments
        if copied.is_one_too_many:
            rows, increments = folded([rows, *self.read(increments)]), ()
        self.took.append(bytes_of(rows))
        if rows:
            increments += (Increment(f"{len(self.files)}", self.took[-1], ""),)
            self.files[increments[-1].file] = rows
        copied.written(increments)
        self.increments = increments

    def read(self, increments):
        return [self.files[increment.file] for increment in reversed(increments)]

    def back(self):
        """Return features as they are put back from the last increments."""
        other = KeptFeatures(SAMPLES)
        other.put_back(folded(self.read(self.increments)))
        return other


def begun():
    kept = KeptFeatures(SAMPLES)
    kept.begin("one", SPECS)
    return kept


def bytes_of(rows):
    return sum(tensor.nbytes for tensor in rows.values())


def kept_in(kept):
    kept.begin("one", SPECS)
    return [kept.rows(slot, torch.arange(SAMPLES)) for slot in SPECS]


def assert_same(one, other):
    for (rows, flags), (others, of_others) in zip(kept_in(one), kept_in(other), strict=True):
        assert torch.equal(flags, of_others)
        assert torch.equal(rows[flags], others[flags])


def change(kept, samples, value):
    for slot, spec in SPECS.items():
        rows = torch.full((len(samples), *spec.shape[1:]), value, dtype=spec.dtype)
        kept.keep(slot, torch.tensor(samples, dtype=torch.int64), rows)


@given(
    epochs=st.lists(
        st.tuples(st.lists(st.integers(0, SAMPLES - 1), unique=True), st.booleans()), min_size=1, max_size=40
    )
)
def test_a_copy_has_what_changed_since_the_last_that_was_written_and_all_at_most_twice_the_whole(epochs):
    kept = begun()
    disk, unwritten = Disk(kept), set()
    for number, (samples, fails) in enumerate(epochs):
        change(kept, samples, float(number))
        unwritten |= set(samples)
        disk.write(fails)
        assert disk.copied[-1] == ROW_BYTES * len(unwritten), "no more, and training waits for no more"
        if not fails:
            whole = ROW_BYTES * int(kept.rows(0, torch.arange(SAMPLES))[1].sum())
            assert disk.took[-1] in (disk.copied[-1], whole)
            assert sum(increment.size_bytes for increment in disk.increments) <= MOST_WHOLES * whole
            assert_same(kept, disk.back())
            unwritten = set()


def test_all_is_written_again_once_increments_would_have_more_than_twice_the_bytes():
    kept = begun()
    disk = Disk(kept)
    change(kept, range(SAMPLES), 0.0)
    disk.write()
    for number in range(12):
        change(kept, range(10 * (number % 4), 10 * (number % 4) + 10), float(number))
        disk.write()
    quarter, whole = 10 * ROW_BYTES, SAMPLES * ROW_BYTES
    assert disk.took == [whole, *[quarter] * 4, whole, *[quarter] * 4, whole, *[quarter] * 2]
    assert disk.copied == [whole, *[quarter] * 12]
    change(kept, range(SAMPLES), 1.0)
    disk.write()
    assert len(disk.increments) == 1, "one that has all needs no others"


def test_a_checkpoint_has_no_more_increments_than_a_manifest_may_list():
    kept = begun()
    disk = Disk(kept)
    change(kept, range(SAMPLES), 0.0)
    disk.write()
    for number in range(MAX_INCREMENTS + 5):
        kept.keep(2, torch.tensor([3]), torch.full((1, 2, 2), float(number), dtype=torch.bfloat16))
        disk.write()
        assert len(disk.increments) <= MAX_INCREMENTS
    assert disk.took[0] in disk.took[1:]


def test_nothing_is_written_where_nothing_has_changed_and_all_after_a_return():
    kept = begun()
    disk = Disk(kept)
    disk.write()
    change(kept, [1, 2], 1.0)
    disk.write()
    increments = disk.increments
    disk.write()
    assert (disk.took, disk.increments) == ([0, 2 * ROW_BYTES, 0], increments)
    late = kept.copy()
    kept.put_back(folded(disk.read(increments)))
    late.written(increments)
    disk.write()
    assert disk.took[-1] == 2 * ROW_BYTES, "a copy from before the return is none to go on from"


def test_all_is_copied_once_increments_are_lost():
    kept = begun()
    disk = Disk(kept)
    change(kept, range(SAMPLES), 0.0)
    disk.write()
    change(kept, [1], 1.0)
    kept.copy().lost()
    disk.write()
    assert disk.copied == [SAMPLES * ROW_BYTES] * 2
    assert_same(kept, disk.back())


@pytest.mark.parametrize(
    "damage",
    [
        {"one/0/numbers": torch.tensor([1, 3])},
        {"one/0/numbers": torch.tensor([1]), "one/0/features": torch.ones(1, 4)},
        {"one/0/numbers": torch.tensor([1]), "one/0/features": torch.ones(2, 3)},
        {"one/0/numbers": torch.tensor(1), "one/0/features": torch.tensor(1.0)},
    ],
)
def test_increments_that_do_not_fit_each_other_are_refused(damage):
    with pytest.raises(StorageError, match="do not fit each other"):
        folded([damage, {"one/0/numbers": torch.tensor([1, 2]), "one/0/features": torch.ones(2, 3)}])
