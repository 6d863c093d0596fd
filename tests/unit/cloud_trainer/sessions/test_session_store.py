"""A trainer's stored sessions: believed whole or not at all, and removed when their owner stays away."""

import asyncio
import os
import threading
from base64 import b64encode
from contextlib import contextmanager

import fsspec
import pytest
import torch

from cloud_trainer.sessions.session_store import Quota, SessionStore
from cloud_trainer.sessions.stored_sessions import SessionOpening
from shared.checkpoint import CheckpointName, FsspecFiles, LocalFiles, seal
from shared.training.held_state import CopiedPart
from shared.wire.isthmus.v1.trainer_pb2 import OpenSessionRequest
from tests.support.wire import open_request

SESSION_ID = "0123456789abcdef" * 2
QUOTA = Quota(100, 1 << 30)
RIGHT = {
    "request": b64encode(open_request().SerializeToString()).decode(),
    "subject": "ours",
}


async def record_of(folder, document):
    files = LocalFiles(folder)
    files.folder(SESSION_ID).write("session.json", seal(document))
    for term in (2, 3):
        files.folder(SESSION_ID).create(f"term-{term}")
    store = SessionStore(files, 1, QUOTA)
    try:
        return await store.record(SESSION_ID)
    finally:
        store.close()


async def test_a_record_is_read_as_it_was_written(tmp_path):
    record = await record_of(tmp_path, RIGHT)
    assert (record.request, record.session_term, record.subject) == (open_request(), 3, "ours")


@pytest.mark.parametrize(
    "wrong",
    [
        {"request": None},
        {"request": "é"},
        {"request": "A"},
        {"request": b64encode(b"\xff\xff").decode()},
    ],
)
async def test_a_record_that_says_something_else_is_not_believed(tmp_path, wrong):
    assert await record_of(tmp_path, RIGHT | wrong) is None


@pytest.mark.parametrize("missing", RIGHT)
async def test_a_record_that_lacks_something_is_not_believed(tmp_path, missing):
    assert await record_of(tmp_path, {key: value for key, value in RIGHT.items() if key != missing}) is None


WRITTEN_SECONDS, AFTER_SECONDS = 1_000_000.0, 5_000.0


async def left(folder, age_seconds, live=()):
    """Write a session whose newest file has this age."""
    files = LocalFiles(folder)
    for name, seconds in {"session.json": WRITTEN_SECONDS - 900, "checkpoint-0-5.json": WRITTEN_SECONDS}.items():
        files.folder(SESSION_ID).write(name, b"{}")
        os.utime(folder / SESSION_ID / name, (seconds, seconds))
    store = SessionStore(files, 1, QUOTA, clock=lambda: WRITTEN_SECONDS + age_seconds)
    try:
        await store.forget_abandoned(AFTER_SECONDS, live.__contains__)
    finally:
        store.close()
    return files.folders()


async def test_a_session_is_removed_when_nothing_was_written_for_longer_than_the_bound_and_not_before(tmp_path):
    assert await left(tmp_path, AFTER_SECONDS - 0.5) == [SESSION_ID]
    assert await left(tmp_path, AFTER_SECONDS) == [SESSION_ID]
    assert await left(tmp_path, AFTER_SECONDS + 0.5) == []


async def test_a_live_session_is_never_removed(tmp_path):
    assert await left(tmp_path, 1e9, live=[SESSION_ID]) == [SESSION_ID]
    assert await left(tmp_path, 1e9, live=["another"]) == []


async def test_a_folder_that_is_no_session_is_left_alone(tmp_path):
    (tmp_path / "somebodys").mkdir()
    (tmp_path / "somebodys" / "file").touch()
    assert await left(tmp_path, 1e9) == ["somebodys"]


RECORD = SessionOpening(open_request(), 0, "ours")


class ExclusiveStore:
    """An object store in memory whose driver creates exclusively. The one of fsspec looks first, and writes then."""

    def __init__(self):
        self._memory = fsspec.filesystem("memory")
        self._one_creates = threading.Lock()

    def __getattr__(self, name):
        return getattr(self._memory, name)

    def pipe_file(self, *arguments, **named):
        with self._one_creates:
            return self._memory.pipe_file(*arguments, **named)


@pytest.fixture(params=["folder", "store"])
def place(request, tmp_path):
    """Give a folder of this machine, and an object store."""
    return LocalFiles(tmp_path) if request.param == "folder" else FsspecFiles(ExclusiveStore(), str(tmp_path))


async def test_a_term_is_taken_once_however_many_trainers_share_a_store(place):
    trainers = [SessionStore(place, 1, QUOTA) for _ in range(4)]
    try:
        await trainers[0].keep_record(SESSION_ID, RECORD)
        for term in (1, 2, 7):
            taken = await asyncio.gather(*(trainer.fence(SESSION_ID, RECORD, term) for trainer in trainers))
            assert sum(taken) == 1
        assert not await trainers[1].fence(SESSION_ID, RECORD, 6), "a later one has it"
        record = await trainers[2].record(SESSION_ID)
        assert record.session_term == 7
    finally:
        for trainer in trainers:
            trainer.close()


async def test_a_record_that_could_not_be_written_is_written_with_the_first_attach(place):
    store = SessionStore(place, 1, QUOTA)
    try:
        assert await store.fence(SESSION_ID, RECORD, 1)
        record = await store.record(SESSION_ID)
    finally:
        store.close()
    assert (record.request, record.session_term, record.subject) == (open_request(), 1, "ours")


async def test_checkpoints_of_one_subject_take_no_more_than_they_may(tmp_path):
    store = SessionStore(LocalFiles(tmp_path), 3, Quota(100, 12_000))
    other = "f" * 32
    try:
        await store.keep_record(SESSION_ID, RECORD)
        await store.keep_record(other, SessionOpening(open_request(), 0, "theirs"))
        state = CopiedPart({"0/weight": torch.zeros(1000)})
        saved = [await store.save(SESSION_ID, CheckpointName(1, step), {}, state, ()) for step in (1, 2, 3)]
        assert saved == [True, True, False], "a third of 4,000 bytes would be too much"
        assert await store.names(SESSION_ID) == [(1, 2), (1, 1)], "what was there is whole"
        assert await store.save(other, CheckpointName(1, 1), {}, state, ()), "another subject's room is its own"
    finally:
        store.close()


async def test_a_list_of_sessions_reads_only_its_subjects_records_and_off_the_loop(tmp_path, monkeypatch):
    store, reads = SessionStore(LocalFiles(tmp_path), 1, QUOTA), []
    read = LocalFiles.read

    def noted(files, name):
        reads.append((files.path.name, threading.current_thread()))
        return read(files, name)

    try:
        for number in range(8):
            subject = "ours" if number == 3 else "theirs"
            await store.keep_record(f"{number:032x}", SessionOpening(open_request(), 0, subject))
        await store.learn()
        monkeypatch.setattr(LocalFiles, "read", noted)
        assert list(await store.listed(lambda subject: subject == "ours")) == [f"{3:032x}"]
    finally:
        store.close()
    assert {session for session, _ in reads} == {f"{3:032x}"}
    assert threading.current_thread() not in {thread for _, thread in reads}


async def test_only_sessions_that_cannot_resume_make_room_for_new_ones(tmp_path):
    store = SessionStore(LocalFiles(tmp_path), 1, Quota(2, 1 << 20))
    useless, resumable = "a" * 32, "b" * 32
    try:
        for session in (useless, resumable):
            await store.keep_record(session, RECORD)
        await store.save(resumable, CheckpointName(1, 1), {}, CopiedPart({"0/weight": torch.zeros(1)}), ())
        new = "c" * 32
        assert not await store.reserve_room(new, "ours", {useless}.__contains__), "what is in memory may become useful"
        assert await store.reserve_room(new, "ours", lambda _: False)
        assert await store.record(useless) is None
        assert await store.record(resumable) is not None
    finally:
        store.close()


async def test_sessions_that_are_opened_at_one_time_are_no_more_than_a_subject_may_have(tmp_path):
    store = SessionStore(LocalFiles(tmp_path), 1, Quota(2, 1 << 20))

    async def opened(number):
        session = f"{number:032x}"
        try:
            if not await store.reserve_room(session, "ours", lambda _: True):
                return False
            await asyncio.sleep(0)  # a model is being built
            await store.keep_record(session, RECORD)
            return True
        finally:
            store.release_room(session)

    try:
        assert sum(await asyncio.gather(*(opened(number) for number in range(5)))) == 2
        assert not await opened(6)
        await store.forget(f"{0:032x}")
        assert await opened(7), "the room of one that was forgotten is free"
        assert await store.reserve_room("d" * 32, "theirs", lambda _: True), "another subject's room is its own"
    finally:
        store.close()


async def test_room_that_was_reserved_for_a_session_that_failed_to_open_is_free_again(tmp_path):
    store = SessionStore(LocalFiles(tmp_path), 1, Quota(1, 1 << 20))
    try:
        assert await store.reserve_room(SESSION_ID, "ours", lambda _: True)
        assert not await store.reserve_room("b" * 32, "ours", lambda _: True)
        store.release_room(SESSION_ID)
        assert await store.reserve_room("b" * 32, "ours", lambda _: True)
    finally:
        store.close()


async def test_checkpoints_that_are_written_at_one_time_take_no_more_than_a_subject_may_have(tmp_path):
    store, sessions = (
        SessionStore(LocalFiles(tmp_path), 3, Quota(100, 10_000)),
        [f"{number:032x}" for number in range(5)],
    )
    state = CopiedPart({"0/weight": torch.zeros(1000)})
    try:
        for session in sessions:
            await store.keep_record(session, SessionOpening(OpenSessionRequest(), 0, "ours"))
        saved = [store.save(session, CheckpointName(1, 1), {}, state, ()) for session in sessions]
        assert sum(await asyncio.gather(*saved)) == 2, "a third of 4,000 bytes would be too much"
    finally:
        store.close()


async def test_the_checkpoint_that_is_replaced_counts_as_free_room(tmp_path):
    store = SessionStore(LocalFiles(tmp_path), 1, Quota(100, 12_000))
    state = CopiedPart({"0/weight": torch.zeros(1000)})
    try:
        await store.keep_record(SESSION_ID, RECORD)
        assert all([await store.save(SESSION_ID, CheckpointName(1, step), {}, state, ()) for step in range(5)])
        pinned = [CheckpointName(1, 4)]
        assert await store.save(SESSION_ID, CheckpointName(1, 5), {}, state, pinned)
        assert not await store.save(SESSION_ID, CheckpointName(1, 6), {}, state, [*pinned, CheckpointName(1, 5)])
    finally:
        store.close()


async def listed_after_a_checkpoint(store):
    """Save a checkpoint, and list the sessions that the subject has."""
    assert await store.fence(SESSION_ID, RECORD, 1)
    assert await store.save(SESSION_ID, CheckpointName(1, 1), {}, CopiedPart({"0/weight": torch.zeros(1)}), ())
    return list(await store.listed(lambda subject: subject == "ours"))


async def test_a_session_that_another_trainer_opened_stays_its_subjects(place):
    first, second = SessionStore(place, 1, QUOTA), SessionStore(place, 1, QUOTA)
    try:
        await second.learn()
        await first.keep_record(SESSION_ID, RECORD)
        assert await listed_after_a_checkpoint(second) == [SESSION_ID]
    finally:
        first.close()
        second.close()


async def test_a_session_that_is_opened_while_others_are_listed_stays_its_subjects(tmp_path, monkeypatch):
    store, begun, go_on = SessionStore(LocalFiles(tmp_path), 1, QUOTA), threading.Event(), threading.Event()
    folders = LocalFiles.folders

    def slowly(files):
        found = folders(files)
        begun.set()
        assert go_on.wait(60)
        return found

    try:
        monkeypatch.setattr(LocalFiles, "folders", slowly)
        listing = asyncio.create_task(store.learn())
        assert await asyncio.to_thread(begun.wait, 60)
        opening = asyncio.create_task(store.keep_record(SESSION_ID, RECORD))
        await asyncio.sleep(0)
        go_on.set()
        await asyncio.gather(listing, opening)
        assert await store.save(SESSION_ID, CheckpointName(1, 1), {}, CopiedPart({"0/weight": torch.zeros(1)}), ())
        assert list(await store.listed(lambda subject: subject == "ours")) == [SESSION_ID]
    finally:
        go_on.set()
        store.close()


@contextmanager
def trainers_on(place, quota, count=2):
    stores = [SessionStore(place, 1, quota) for _ in range(count)]
    try:
        yield stores
    finally:
        for store in stores:
            store.close()


def nothing_is_live(_session_id):
    return False


STATE = CopiedPart({"0/weight": torch.zeros(1)})


async def test_a_session_that_another_trainer_has_neither_makes_room_nor_takes_it(place):
    with trainers_on(place, Quota(1, 1 << 20)) as (first, second):
        await first.keep_record(SESSION_ID, RECORD)
        await second.learn()
        assert await second.is_elsewhere(SESSION_ID)
        assert not await first.is_elsewhere(SESSION_ID)
        assert await second.reserve_room("b" * 32, "ours", nothing_is_live), "each trainer counts its own"
        await second.keep_record("b" * 32, RECORD)
        second.release_room("b" * 32)
        assert not await second.reserve_room("c" * 32, "ours", {"b" * 32}.__contains__)
        assert await second.record(SESSION_ID) is not None
        assert await first.save(SESSION_ID, CheckpointName(1, 1), {}, STATE, ())


async def test_a_session_that_another_trainer_made_resumable_survives_that_trainer(place):
    with trainers_on(place, Quota(1, 1 << 20)) as (first, second):
        await first.keep_record(SESSION_ID, RECORD)
        await second.learn()
        await first.save(SESSION_ID, CheckpointName(1, 1), {}, STATE, ())
        first.close()
        assert not await second.is_elsewhere(SESSION_ID)
        assert not await second.reserve_room("b" * 32, "ours", nothing_is_live)
        assert await second.names(SESSION_ID) == [(1, 1)]


async def test_a_session_that_another_trainer_removed_takes_no_room(place):
    with trainers_on(place, Quota(1, 1 << 20)) as (first, second):
        await first.keep_record(SESSION_ID, RECORD)
        await first.save(SESSION_ID, CheckpointName(1, 1), {}, STATE, ())
        await first.let_go(SESSION_ID)
        await second.learn()
        assert not await second.reserve_room("b" * 32, "ours", nothing_is_live)
        await first.forget(SESSION_ID)
        assert await second.reserve_room("b" * 32, "ours", nothing_is_live)


async def test_a_session_that_another_trainer_has_is_not_abandoned_however_old(tmp_path):
    files = LocalFiles(tmp_path)
    with trainers_on(files, QUOTA) as (first, _):
        await first.keep_record(SESSION_ID, RECORD)
        second = SessionStore(files, 1, QUOTA, clock=lambda: 1e12)
        try:
            await second.forget_abandoned(AFTER_SECONDS, nothing_is_live)
            assert files.folders() == [SESSION_ID]
            await first.renew(nothing_is_live)
            await second.forget_abandoned(AFTER_SECONDS, nothing_is_live)
            assert files.folders() == []
        finally:
            second.close()
