"""A trainer's part of a checkpoint: its copy counts toward the session's memory until it is written."""

import asyncio
from types import SimpleNamespace

import pytest

from cloud_trainer.sessions.checkpointer import SessionCheckpointer
from cloud_trainer.sessions.limits import Limits
from cloud_trainer.sessions.memory import SessionMemory
from shared.transport.rpc.status import StatusError
from shared.wire.isthmus.v1 import trainer_pb2 as pb
from tests.support.virtual import InlineWorker

MODEL, STATE = 1000, 100
WANTED = pb.CheckpointWorkerRequest(name=pb.CheckpointName(lineage=0, step=3))


class SlowStore:
    """A store that writes a checkpoint when a test tells it to."""

    def __init__(self):
        self.may_write = asyncio.Event()

    async def save(self, *_what):
        """Save as `SessionStore` does."""
        await self.may_write.wait()
        return True


def session_with(room):
    """Build a session at step 3 with four blocks. room: bytes that it has besides the model's."""
    limits = Limits(tensor_bytes=1 << 20, staleness=64, session_bytes=MODEL + room)
    return SimpleNamespace(
        id="s",
        worker=SimpleNamespace(
            placement=None,
            check_at=lambda _name: None,
            needed_of_checkpoint=lambda _placement: [0, 1, 2, 3],
            updates=lambda _block: True,
        ),
        blocks=SimpleNamespace(copied=dict),
        memory=SessionMemory(limits, MODEL, [STATE // 4] * 4),
    )


def checkpointer(store):
    return SessionCheckpointer(store, SimpleNamespace(compute_lane=lambda _session: InlineWorker()))


async def test_the_copy_is_held_until_it_is_written():
    session, store, told = session_with(room=0), SlowStore(), []

    async def tell(written):
        told.append(written)

    taking = checkpointer(store)
    await taking.take(session, WANTED, tell)
    with pytest.raises(StatusError, match=r"server\.max_session_bytes"):
        session.memory.begin_upload(1)
    store.may_write.set()
    await taking.wait_for_all()
    session.memory.begin_upload(STATE)
    assert told == [True]


async def test_no_copy_is_made_where_the_session_has_no_memory_for_it():
    session, told = session_with(room=0), []
    session.memory.begin_upload(1)
    taking = checkpointer(SlowStore())
    with pytest.raises(StatusError, match=r"server\.max_session_bytes"):
        await taking.take(session, WANTED, told.append)
    await taking.wait_for_all()
    assert not told
    session.memory.end_upload(1)
    session.memory.begin_upload(STATE)
