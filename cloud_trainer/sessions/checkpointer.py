"""Checkpoints of the cloud's side, written while training goes on."""

import asyncio
from collections.abc import Awaitable, Callable

from cloud_trainer.sessions.session import Session
from cloud_trainer.sessions.session_store import SessionStore
from cloud_trainer.sessions.threads import TrainerThreads
from shared.checkpoint import CheckpointName
from shared.errors import ProtocolError
from shared.wire.isthmus.v1 import trainer_pb2 as pb


class SessionCheckpointer:
    """At most one checkpoint of a session at a time."""

    def __init__(self, store: SessionStore, threads: TrainerThreads) -> None:
        self._store = store
        self._threads = threads
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def wait_for_all(self) -> None:
        """Returns when all that are being written have been, or could not be."""
        await asyncio.gather(*self._tasks.values())

    async def wait_for(self, session_id: str) -> None:
        """The same for one session."""
        if (checkpointer := self._tasks.get(session_id)) is not None:
            await asyncio.wait({checkpointer})

    async def take(self, session: Session, wanted: pb.TakeCheckpoint, tell: Callable[[bool], Awaitable[None]]) -> None:
        """Copy the session's state and write it while training goes on; one at a time."""
        name = CheckpointName(wanted.name.lineage, wanted.name.step)
        pinned = [CheckpointName(wanted.shared.lineage, wanted.shared.step)] if wanted.HasField("shared") else []
        if (session.training.lineage, session.training.next_step) != name:
            raise ProtocolError(
                f"checkpoint {name} is asked for; the session is at {session.training.lineage}-{session.training.next_step}"
            )
        if session.id in self._tasks:
            await tell(False)
            return
        _, facts, state = await self._threads.compute_lane(session.id).aside(session.training.copy)

        async def save() -> None:
            written = False
            try:
                written = await self._store.save(session.id, name, facts, state, pinned)
            finally:  # a defect is reported by the loop; the edge must not wait for this checkpoint
                del self._tasks[session.id]
                await tell(written)

        self._tasks[session.id] = asyncio.create_task(save())
