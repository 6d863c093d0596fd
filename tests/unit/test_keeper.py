"""What a trainer has kept of a session: believed whole or not at all, and removed when nobody comes for it."""

import os
from base64 import b64encode

import pytest

from cloud_trainer.keeper import Keeper
from shared.checkpoint import LocalFiles, seal
from tests.support.wire import open_request

SESSION_ID = "0123456789abcdef" * 2
RIGHT = {
    "request": b64encode(open_request().SerializeToString()).decode(),
    "session_epoch": 3,
    "subject": "ours",
}


async def record_of(folder, document):
    files = LocalFiles(folder)
    files.folder(SESSION_ID).write("session.json", seal(document))
    keeper = Keeper(files, 1)
    try:
        return await keeper.record(SESSION_ID)
    finally:
        keeper.close()


async def test_a_record_is_read_as_it_was_written(tmp_path):
    record = await record_of(tmp_path, RIGHT)
    assert (record.request, record.session_epoch, record.subject) == (open_request(), 3, "ours")


@pytest.mark.parametrize(
    "wrong",
    [
        {"request": None},
        {"request": "é"},
        {"request": "A"},
        {"request": b64encode(b"\xff\xff").decode()},
        {"session_epoch": "x"},
        {"session_epoch": None},
        {"session_epoch": float("inf")},
        {"session_epoch": float("nan")},
    ],
)
async def test_a_record_that_says_something_else_is_not_believed(tmp_path, wrong):
    assert await record_of(tmp_path, RIGHT | wrong) is None


@pytest.mark.parametrize("missing", RIGHT)
async def test_a_record_that_lacks_something_is_not_believed(tmp_path, missing):
    assert await record_of(tmp_path, {key: value for key, value in RIGHT.items() if key != missing}) is None


WRITTEN_SECONDS, AFTER_SECONDS = 1_000_000.0, 5_000.0


async def left(folder, age_seconds, live=()):
    """What is left of a session whose newest file is so old."""
    files = LocalFiles(folder)
    for name, seconds in {"session.json": WRITTEN_SECONDS - 900, "checkpoint-0-5.json": WRITTEN_SECONDS}.items():
        files.folder(SESSION_ID).write(name, b"{}")
        os.utime(folder / SESSION_ID / name, (seconds, seconds))
    keeper = Keeper(files, 1, clock=lambda: WRITTEN_SECONDS + age_seconds)
    try:
        await keeper.forget_abandoned(AFTER_SECONDS, live.__contains__)
    finally:
        keeper.close()
    return files.folders()


async def test_a_session_is_removed_when_nothing_was_written_for_longer_than_the_bound_and_not_before(tmp_path):
    assert await left(tmp_path, AFTER_SECONDS - 0.5) == [SESSION_ID]
    assert await left(tmp_path, AFTER_SECONDS) == [SESSION_ID]
    assert await left(tmp_path, AFTER_SECONDS + 0.5) == []


async def test_a_live_session_is_never_removed(tmp_path):
    assert await left(tmp_path, 1e9, live=[SESSION_ID]) == [SESSION_ID]
    assert await left(tmp_path, 1e9, live=["another"]) == []


async def test_what_is_no_session_is_left_alone(tmp_path):
    (tmp_path / "somebodys").mkdir()
    (tmp_path / "somebodys" / "file").touch()
    assert await left(tmp_path, 1e9) == ["somebodys"]
