"""Which links a session has dialled: one set for training and one for an evaluation, and none that nobody would end."""

import asyncio

import pytest

from cloud_trainer.sessions.worker.dialling import Dialling
from shared.errors import ProtocolError


class Links:
    """In place of `PeerLinks`: notes what becomes of it, and ends as slowly as a test says."""

    def __init__(self, said, name):
        self.failure = asyncio.get_running_loop().create_future()
        self.ending, self.may_end = asyncio.Event(), asyncio.Event()
        self.may_end.set()
        self._said, self._name = said, name

    def dial(self):
        self._said.append(f"dial {self._name}")

    async def stop(self):
        self._said.append(f"stop {self._name}")
        self.ending.set()
        await self.may_end.wait()
        self.failure.cancel()


@pytest.fixture
def said():
    return []


async def test_what_was_dialled_before_for_the_same_ends_first(said):
    dialling = Dialling(said.append)
    await dialling.dial(0, Links(said, "training"))
    await dialling.dial(3, Links(said, "evaluation"))
    await dialling.dial(0, Links(said, "again"))
    await dialling.end(3)
    await dialling.end(3)
    assert said == ["dial training", "dial evaluation", "stop training", "dial again", "stop evaluation"]


async def test_links_that_are_ended_before_they_are_dialled_are_never_dialled(said):
    dialling, before = Dialling(said.append), Links(said, "before")
    await dialling.dial(0, before)
    before.may_end.clear()
    dialing = asyncio.create_task(dialling.dial(0, Links(said, "after")))
    await before.ending.wait()
    await dialling.end(0)
    before.may_end.set()
    await dialing
    assert said == ["dial before", "stop before", "stop after"]


async def test_a_failure_is_told_once_and_stays_until_the_links_are_ended(said):
    dialling, links, failure = Dialling(said.append), Links(said, "links"), ProtocolError("lost for good")
    await dialling.dial(3, links)
    assert dialling.failure(3) is None
    links.failure.set_exception(failure)
    await asyncio.wait({links.failure})
    assert said == ["dial links", 3]
    assert dialling.failure(3) is failure
    assert dialling.failure(0) is None
    await dialling.end(3)
    assert dialling.failure(3) is None
    assert said == ["dial links", 3, "stop links"]
