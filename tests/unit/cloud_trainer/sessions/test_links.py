"""The links that a session has dialled: one set for training, one for an evaluation, and none that is never ended."""

import asyncio

import pytest

from cloud_trainer.sessions.attachment import StreamName
from cloud_trainer.sessions.links import SessionLinks
from shared.errors import ProtocolError


class Links:
    """A stand-in for `PeerLinks`: records its calls, and ends when a test tells it to."""

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


@pytest.fixture
def links():
    return SessionLinks("5e55")


async def test_earlier_links_for_the_same_purpose_end_first(links, said):
    await links.dial(0, Links(said, "training"))
    await links.dial(3, Links(said, "evaluation"))
    await links.dial(0, Links(said, "again"))
    await links.end(3)
    await links.end(3)
    assert said == ["dial training", "dial evaluation", "stop training", "dial again", "stop evaluation"]


async def test_links_that_are_ended_before_they_are_dialled_are_never_dialled(links, said):
    before = Links(said, "before")
    await links.dial(0, before)
    before.may_end.clear()
    dialing = asyncio.create_task(links.dial(0, Links(said, "after")))
    await before.ending.wait()
    await links.end_training()
    before.may_end.set()
    await dialing
    assert said == ["dial before", "stop before", "stop after"]


async def test_a_failure_ends_the_streams_of_the_same_and_stays_until_the_links_are_ended(links, said):
    dialled, failure = Links(said, "links"), ProtocolError("lost for good")
    training, evaluating = (asyncio.create_task(asyncio.Event().wait()) for _ in range(2))
    links.attachment.attach(training)
    links.attachment.attach(evaluating, StreamName(evaluation=3))
    await links.dial(3, dialled)
    assert links.failure(3) is None
    dialled.failure.set_exception(failure)
    await asyncio.wait({evaluating})
    assert evaluating.cancelled()
    assert not training.done()
    assert links.failure(3) is failure
    assert links.failure(0) is None
    await links.end(3)
    assert links.failure(3) is None
    assert said == ["dial links", "stop links"]
    training.cancel()
