"""Checkpoints are whole or absent, whatever interrupts their writing or damages them."""

import errno
import multiprocessing
import os
import signal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shared.checkpoint import (
    CheckpointName,
    CheckpointStore,
    DamagedCheckpointError,
    LocalFiles,
    seal,
)
from shared.checkpoint.store import FORMAT
from shared.errors import StorageError
from tests.support.examples import examples

NAMES = st.builds(CheckpointName, st.integers(0, 3), st.integers(0, 2**40))


def whole_names(store):
    return [name for name in store.names() if store.is_whole(name)]


def test_a_checkpoint_comes_back_as_it_went(files):
    store = CheckpointStore(files, keep=2)
    store.save(CheckpointName(0, 7), {"deployment": {"cut": 2}}, b"\0" * 1000)
    loaded = store.load(CheckpointName(0, 7))
    assert (loaded.facts, loaded.data) == ({"deployment": {"cut": 2}}, b"\0" * 1000)
    with pytest.raises(DamagedCheckpointError, match=r"checkpoint 0-8: its manifest is missing"):
        store.load(CheckpointName(0, 8))


@settings(max_examples=examples(30), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(names=st.lists(NAMES, unique=True, max_size=8), keep=st.integers(1, 4), data=st.data())
def test_pruning_leaves_the_newest_and_the_pinned(tmp_path_factory, names, keep, data):
    store = CheckpointStore(LocalFiles(tmp_path_factory.mktemp("store")), keep)
    for name in names:
        store.save(name, {}, b"x")
    pinned = data.draw(st.sets(st.sampled_from(names))) if names else set()
    store.prune(pinned)
    assert store.names() == sorted({*sorted(names, reverse=True)[:keep], *pinned}, reverse=True) == whole_names(store)
    assert len(store.files.names()) == 2 * len(store.names()), "no file is left without its manifest"


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_damage_is_noticed_and_the_one_before_counts(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("store")
    store = CheckpointStore(LocalFiles(folder), keep=3)
    for step in (10, 20):
        store.save(CheckpointName(0, step), {"step": step}, os.urandom(50))
    path = data.draw(st.sampled_from([path for path in sorted(folder.iterdir()) if "0-20" in path.name]))
    whole = path.read_bytes()
    match data.draw(st.sampled_from(["flip", "cut", "remove", "append"])):
        case "flip":
            at = data.draw(st.integers(0, len(whole) - 1))
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << data.draw(st.integers(0, 7))]) + whole[at + 1 :])
        case "cut":
            path.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
        case "append":
            path.write_bytes(whole + b"more")
        case "remove":
            path.unlink()
    assert whole_names(store) == [CheckpointName(0, 10)]
    assert store.load(CheckpointName(0, 10)).facts == {"step": 10}


def test_a_manifest_of_another_name_is_not_believed(tmp_path):
    store = CheckpointStore(LocalFiles(tmp_path), keep=3)
    store.save(CheckpointName(0, 10), {}, b"x")
    for suffix in ("json", "safetensors"):
        (tmp_path / f"checkpoint-0-10.{suffix}").rename(tmp_path / f"checkpoint-0-99.{suffix}")
    assert whole_names(store) == []


WHOLE = {"format": FORMAT, "lineage": 0, "step": 10, "bytes": 1, "xxh3_128": "", "increments": [], "facts": {}}
SEALED = [seal({key: value for key, value in WHOLE.items() if key != missing}) for missing in WHOLE]


@pytest.mark.parametrize(
    "content",
    [b"", b"{}", b"[]", b"null", b'{"document": 3}', b"[" * 100_000, b"\xff\xfe", *SEALED, seal(WHOLE | {"facts": []})],
)
def test_a_manifest_that_is_something_else_is_damage(tmp_path, content):
    store = CheckpointStore(LocalFiles(tmp_path), keep=3)
    store.save(CheckpointName(0, 10), {}, b"x")
    (tmp_path / "checkpoint-0-10.json").write_bytes(content)
    with pytest.raises(DamagedCheckpointError, match="its manifest is not what was written"):
        store.load(CheckpointName(0, 10))


def failing(number):
    def fail(*_arguments, **_more):
        raise OSError(number, os.strerror(number))

    return fail


@pytest.mark.parametrize("call", range(4))
@pytest.mark.parametrize("fault", [errno.ENOSPC, errno.EIO], ids=["disk full", "failed fsync"])
def test_a_disk_that_fails_leaves_earlier_checkpoints(tmp_path, monkeypatch, call, fault):
    """call: number of the sync that fails, of the four in a checkpoint (file and folder, of the bytes and of the manifest)."""
    store = CheckpointStore(LocalFiles(tmp_path), keep=3)
    store.save(CheckpointName(0, 10), {}, b"x")
    fsync, calls = os.fsync, []

    def fails_once(handle):
        calls.append(handle)
        if len(calls) == call + 1:
            failing(fault)()
        fsync(handle)

    monkeypatch.setattr(os, "fsync", fails_once)
    with pytest.raises(StorageError, match=os.strerror(fault)):
        store.save(CheckpointName(0, 20), {}, b"y")
    monkeypatch.undo()
    # Only the folder's own sync failed: the file was whole, and a checkpoint that is not reported does no harm.
    assert CheckpointName(0, 10) in whole_names(store)
    assert set(whole_names(store)) <= {CheckpointName(0, 10), CheckpointName(0, 20)}
    store.prune()
    store.save(CheckpointName(0, 20), {}, b"y")
    assert whole_names(store) == [CheckpointName(0, 20), CheckpointName(0, 10)]


def test_a_full_disk_in_the_middle_of_the_bytes_leaves_no_scratch_file(tmp_path, monkeypatch):
    files = LocalFiles(tmp_path)
    files.write("x", b"old")
    real = os.fdopen

    class Full:
        def __init__(self, file):
            self._file = file

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self._file.close()

        def write(self, data):
            self._file.write(data[: len(data) // 2])
            failing(errno.ENOSPC)()

    monkeypatch.setattr(os, "fdopen", lambda handle, mode: Full(real(handle, mode)))
    with pytest.raises(StorageError, match=r"x cannot be written: No space left on device"):
        files.write("x", b"new and longer")
    monkeypatch.undo()
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
    assert files.read("x") == b"old"


def _save_and_die(folder, call, name):
    """Die by SIGKILL in the middle of a save, at the given call of a function of `os`."""
    calls = []
    real = getattr(os, name)

    def dies(*arguments, **more):
        calls.append(arguments)
        if len(calls) == call:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*arguments, **more)

    setattr(os, name, dies)
    CheckpointStore(LocalFiles(folder), keep=3).save(CheckpointName(0, 20), {}, b"y" * 100_000)


@pytest.mark.parametrize("name", ["fsync", "replace"])
@pytest.mark.parametrize("call", [1, 2, 3, 4])
def test_a_process_killed_in_the_middle_of_a_save(tmp_path, call, name):
    store = CheckpointStore(LocalFiles(tmp_path), keep=1)
    store.save(CheckpointName(0, 10), {}, b"x")
    process = multiprocessing.get_context("fork").Process(target=_save_and_die, args=(tmp_path, call, name))
    process.start()
    process.join()
    assert process.exitcode in ((-signal.SIGKILL,) if name == "fsync" or call <= 2 else (0,))
    assert whole_names(store)[-1] == CheckpointName(0, 10)
    store.save(CheckpointName(0, 30), {}, b"z")
    store.prune()
    assert whole_names(store) == [CheckpointName(0, 30)]
    assert len(store.files.names()) == 2


def test_a_replica_comes_back_as_it_went_and_is_no_part(files):
    store, name = CheckpointStore(files, keep=2), CheckpointName(0, 7)
    store.save_replica(name, 12, b"state")
    store.save_replica(name, 3, b"other")
    assert (store.names(), store.replicas()) == ([], {name: [3, 12]})
    assert store.load_replica(name, 12).data == b"state"
    for missing in (lambda: store.load(name), lambda: store.load_replica(name, 4)):
        with pytest.raises(DamagedCheckpointError, match="its manifest is missing"):
            missing()


def test_replicas_are_pruned_and_removed_with_their_checkpoint(files):
    store = CheckpointStore(files, keep=1)
    for step in (1, 2, 3):
        store.save(CheckpointName(0, step), {}, b"x")
        store.save_replica(CheckpointName(0, step), 5, b"y")
    counted = store.bytes_after(CheckpointName(0, 3), 1, [CheckpointName(0, 1)])
    store.prune([CheckpointName(0, 1)])
    assert store.replicas() == {CheckpointName(0, 1): [5], CheckpointName(0, 3): [5]}
    manifest = len(files.read("checkpoint-0-3.json"))
    assert sum(files.sizes().values()) == counted + manifest
    assert store.bytes_with_replica(CheckpointName(0, 3), 5, 100) == sum(files.sizes().values()) - 1 + 100
    store.remove(CheckpointName(0, 1))
    assert len(files.names()) == 4


@pytest.mark.parametrize("other", ["checkpoint-0-7", "checkpoint-0-7.block-2", "checkpoint-0-8.block-1"])
def test_a_replica_under_another_name_is_not_believed(tmp_path, other):
    store = CheckpointStore(LocalFiles(tmp_path), keep=3)
    store.save_replica(CheckpointName(0, 7), 1, b"state")
    for suffix in ("json", "safetensors"):
        (tmp_path / f"checkpoint-0-7.block-1.{suffix}").rename(tmp_path / f"{other}.{suffix}")
    for step, block in ((7, None), (7, 2), (8, 1)):
        name = CheckpointName(0, step)
        with pytest.raises(DamagedCheckpointError):
            store.load(name) if block is None else store.load_replica(name, block)
