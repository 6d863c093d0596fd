"""Links are there as long as a checkpoint lists them, whatever interrupts the writing of one, and damage to them is noticed."""

import multiprocessing
import os
import signal

import pytest

from shared.checkpoint import (
    MAX_LINKS,
    Chain,
    CheckpointName,
    CheckpointStore,
    DamagedCheckpointError,
    LocalFiles,
    seal,
    unseal,
)

FIRST, SECOND, THIRD = (CheckpointName(0, step) for step in (10, 20, 30))


def chained(store):
    """Save a checkpoint with a link, and one with another behind it."""
    links = store.save(FIRST, {}, b"x", Chain((), b"whole"))
    return store.save(SECOND, {}, b"y", Chain(links, b"changed"))


def test_links_come_back_as_they_went_the_newest_first(files):
    store = CheckpointStore(files, keep=2)
    links = chained(store)
    assert store.save(THIRD, {}, b"z", Chain(links)) == links, "one that needs no link of its own writes none"
    assert [*store.load_links(FIRST)] == [b"whole"]
    assert [*store.load_links(SECOND)] == [*store.load_links(THIRD)] == [b"changed", b"whole"]
    store.save(SECOND, {}, b"y")
    assert [*store.load_links(SECOND)] == []


def links_on(files):
    return {name for name in files.names() if name.endswith(".link.safetensors")}


def test_a_link_goes_with_the_last_checkpoint_that_lists_it(files):
    store = CheckpointStore(files, keep=1)
    first, second = (link.file for link in chained(store))
    store.prune()
    assert (store.names(), links_on(files)) == ([SECOND], {first, second})
    (third,) = store.save(THIRD, {}, b"z", Chain((), b"whole again"))
    store.prune([SECOND])
    assert links_on(files) == {first, second, third.file}
    assert all(map(store.is_whole, store.names()))
    store.prune()
    assert links_on(files) == {third.file}


@pytest.mark.parametrize("pinned", [[], [SECOND]])
def test_links_are_counted_once_and_as_long_as_they_are_needed(files, pinned):
    store = CheckpointStore(files, keep=1)
    shared = chained(store)[:1]
    counted = store.bytes_after(THIRD, len(b"z" + b"later"), pinned, shared)
    store.save(THIRD, {}, b"z", Chain(shared, b"later"))
    store.prune(pinned)
    assert sum(files.sizes().values()) == counted + len(files.read("checkpoint-0-30.json"))


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-1], lambda data: data + b"more", lambda data: b"W" + data[1:], None]
)
def test_a_damaged_link_damages_all_that_list_it_and_no_others(tmp_path, damage):
    store = CheckpointStore(LocalFiles(tmp_path), keep=3)
    store.save(FIRST, {}, b"x", Chain((), b"before"))
    links = store.save(SECOND, {}, b"y", Chain((), b"whole"))
    store.save(THIRD, {}, b"z", Chain(links, b"changed"))
    link = tmp_path / links[0].file
    link.unlink() if damage is None else link.write_bytes(damage(link.read_bytes()))
    assert [name for name in store.names() if store.is_whole(name)] == [FIRST]
    with pytest.raises(
        DamagedCheckpointError, match=rf"{link.name}, a link of checkpoints, is missing, or not what was written"
    ):
        [*store.load_links(THIRD)]
    assert store.load(THIRD).data == b"z"


LINK = {"file": "checkpoint-0-1.link.safetensors", "size_bytes": 1, "xxh3_128": ""}


@pytest.mark.parametrize(
    "links",
    [
        None,
        {},
        [None],
        [{**LINK, "size_bytes": "1"}],
        [{**LINK, "file": "../checkpoint-0-1.link.safetensors"}],
        [{**LINK, "file": "session.json"}],
        [{"file": LINK["file"], "size_bytes": 1}],
        [LINK] * (MAX_LINKS + 1),
    ],
)
def test_a_manifest_that_lists_something_else_is_damage(tmp_path, links):
    store = CheckpointStore(LocalFiles(tmp_path), keep=3)
    store.save(FIRST, {}, b"x")
    manifest = tmp_path / "checkpoint-0-10.json"
    manifest.write_bytes(seal({**unseal(manifest.read_bytes()), "links": links}))
    with pytest.raises(DamagedCheckpointError, match="its manifest is not what was written"):
        store.load(FIRST)
    store.prune()


def _save_and_die(folder, links, call, name):
    calls, real = [], getattr(os, name)

    def dies(*arguments, **more):
        calls.append(arguments)
        if len(calls) == call:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*arguments, **more)

    setattr(os, name, dies)
    CheckpointStore(LocalFiles(folder), keep=3).save(SECOND, {}, b"y", Chain(links, b"changed" * 10_000))


@pytest.mark.parametrize(
    ("name", "call"), [*(("fsync", call) for call in range(1, 7)), *(("replace", call) for call in range(1, 4))]
)
def test_a_process_killed_in_the_middle_of_a_save_leaves_the_chain_as_it_was(tmp_path, name, call):
    store = CheckpointStore(LocalFiles(tmp_path), keep=1)
    links = store.save(FIRST, {}, b"x", Chain((), b"whole"))
    process = multiprocessing.get_context("fork").Process(target=_save_and_die, args=(tmp_path, links, call, name))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert store.is_whole(FIRST)
    assert [*store.load_links(FIRST)] == [b"whole"]
    store.save(THIRD, {}, b"z", Chain(links, b"later"))
    store.prune()
    assert [*store.load_links(THIRD)] == [b"later", b"whole"]
    assert len(store.files.names()) == 4
