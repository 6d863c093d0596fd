"""Increments are there as long as a checkpoint lists them, whatever interrupts their writing, and damage to them is noticed."""

import multiprocessing
import os
import signal

import pytest

from shared.checkpoint import (
    MAX_INCREMENTS,
    CheckpointName,
    CheckpointStore,
    DamagedCheckpointError,
    Increments,
    LocalFiles,
    seal,
    unseal,
)

FIRST, SECOND, THIRD = (CheckpointName(0, step) for step in (10, 20, 30))


def incremental(store):
    """Save a checkpoint with an increment, and one with another behind it."""
    increments = store.save(FIRST, {}, b"x", Increments((), b"whole"))
    return store.save(SECOND, {}, b"y", Increments(increments, b"changed"))


def test_increments_come_back_as_they_went_the_newest_first(files):
    store = CheckpointStore(files, keep=2)
    increments = incremental(store)
    assert store.save(THIRD, {}, b"z", Increments(increments)) == increments, (
        "one that needs no increment of its own writes none"
    )
    assert [*store.load_increments(FIRST)] == [b"whole"]
    assert [*store.load_increments(SECOND)] == [*store.load_increments(THIRD)] == [b"changed", b"whole"]
    store.save(SECOND, {}, b"y")
    assert [*store.load_increments(SECOND)] == []


def increments_on(files):
    return {name for name in files.names() if name.endswith(".increment.safetensors")}


def test_an_increment_goes_with_the_last_checkpoint_that_lists_it(files):
    store = CheckpointStore(files, keep=1)
    first, second = (increment.file for increment in incremental(store))
    store.prune()
    assert (store.names(), increments_on(files)) == ([SECOND], {first, second})
    (third,) = store.save(THIRD, {}, b"z", Increments((), b"whole again"))
    store.prune([SECOND])
    assert increments_on(files) == {first, second, third.file}
    assert all(map(store.is_whole, store.names()))
    store.prune()
    assert increments_on(files) == {third.file}


@pytest.mark.parametrize("pinned", [[], [SECOND]])
def test_increments_are_counted_once_and_as_long_as_they_are_needed(files, pinned):
    store = CheckpointStore(files, keep=1)
    shared = incremental(store)[:1]
    counted = store.bytes_after(THIRD, len(b"z" + b"later"), pinned, shared)
    store.save(THIRD, {}, b"z", Increments(shared, b"later"))
    store.prune(pinned)
    assert sum(files.sizes().values()) == counted + len(files.read("checkpoint-0-30.json"))


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-1], lambda data: data + b"more", lambda data: b"W" + data[1:], None]
)
def test_a_damaged_increment_damages_all_that_list_it_and_no_others(tmp_path, damage):
    store = CheckpointStore(LocalFiles(tmp_path), keep=3)
    store.save(FIRST, {}, b"x", Increments((), b"before"))
    increments = store.save(SECOND, {}, b"y", Increments((), b"whole"))
    store.save(THIRD, {}, b"z", Increments(increments, b"changed"))
    increment = tmp_path / increments[0].file
    increment.unlink() if damage is None else increment.write_bytes(damage(increment.read_bytes()))
    assert [name for name in store.names() if store.is_whole(name)] == [FIRST]
    with pytest.raises(
        DamagedCheckpointError,
        match=rf"{increment.name}, an increment of checkpoints, is missing, or not what was written",
    ):
        [*store.load_increments(THIRD)]
    assert store.load(THIRD).data == b"z"


INCREMENT = {"file": "checkpoint-0-1.increment.safetensors", "size_bytes": 1, "xxh3_128": ""}


@pytest.mark.parametrize(
    "increments",
    [
        None,
        {},
        [None],
        [{**INCREMENT, "size_bytes": "1"}],
        [{**INCREMENT, "file": "../checkpoint-0-1.increment.safetensors"}],
        [{**INCREMENT, "file": "session.json"}],
        [{"file": INCREMENT["file"], "size_bytes": 1}],
        [INCREMENT] * (MAX_INCREMENTS + 1),
    ],
)
def test_a_manifest_that_lists_something_else_is_damage(tmp_path, increments):
    store = CheckpointStore(LocalFiles(tmp_path), keep=3)
    store.save(FIRST, {}, b"x")
    manifest = tmp_path / "checkpoint-0-10.json"
    manifest.write_bytes(seal({**unseal(manifest.read_bytes()), "increments": increments}))
    with pytest.raises(DamagedCheckpointError, match="its manifest is not what was written"):
        store.load(FIRST)
    store.prune()


def _save_and_die(folder, increments, call, name):
    calls, real = [], getattr(os, name)

    def dies(*arguments, **more):
        calls.append(arguments)
        if len(calls) == call:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*arguments, **more)

    setattr(os, name, dies)
    CheckpointStore(LocalFiles(folder), keep=3).save(SECOND, {}, b"y", Increments(increments, b"changed" * 10_000))


@pytest.mark.parametrize(
    ("name", "call"), [*(("fsync", call) for call in range(1, 7)), *(("replace", call) for call in range(1, 4))]
)
def test_a_process_killed_in_the_middle_of_a_save_leaves_those_before_as_they_were(tmp_path, name, call):
    store = CheckpointStore(LocalFiles(tmp_path), keep=1)
    increments = store.save(FIRST, {}, b"x", Increments((), b"whole"))
    process = multiprocessing.get_context("fork").Process(target=_save_and_die, args=(tmp_path, increments, call, name))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert store.is_whole(FIRST)
    assert [*store.load_increments(FIRST)] == [b"whole"]
    store.save(THIRD, {}, b"z", Increments(increments, b"later"))
    store.prune()
    assert [*store.load_increments(THIRD)] == [b"later", b"whole"]
    assert len(store.files.names()) == 4
