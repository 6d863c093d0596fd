"""The trainer's parts of checkpoints: each is copied between two steps, and written while training continues."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import ExitStack

from cloud_trainer.sessions.session import Session
from cloud_trainer.sessions.session_store import SessionStore
from cloud_trainer.sessions.shared_store import facts_of_part
from cloud_trainer.sessions.threads import TrainerThreads
from shared.checkpoint_wire import checkpoint_name
from shared.wire.isthmus.v1 import trainer_pb2 as pb


class SessionCheckpointer:
    """Writes at most one checkpoint of a session at a time."""

    def __init__(self, store: SessionStore, threads: TrainerThreads) -> None:
        self._store = store
        self._threads = threads
        self._saving: dict[str, asyncio.Task[None]] = {}

    async def wait_for_all(self) -> None:
        """Wait until all checkpoints in progress are written, or have failed."""
        await asyncio.gather(*self._saving.values())

    async def wait_for(self, session_id: str) -> None:
        """Wait until a session's checkpoint in progress is written, or has failed."""
        if (saving := self._saving.get(session_id)) is not None:
            await asyncio.wait({saving})

    async def take(
        self, session: Session, wanted: pb.CheckpointWorkerRequest, tell: Callable[[bool], Awaitable[None]]
    ) -> None:
        """Copy the session's state and return. The writing continues afterwards.

        tell: called with whether the checkpoint is written; at once with False while another is being written. Raises
        ProtocolError for a checkpoint that cannot be, and StatusError if the session is in another state than it, if it has no
        memory for the copy, or where training has changed what it must not.
        """
        name = checkpoint_name(wanted.name)
        pinned = [checkpoint_name(wanted.shared)] if wanted.HasField("shared") else []
        worker = session.worker
        worker.check_at(name)
        if session.id in self._saving:
            await tell(False)
            return
        with ExitStack() as copied:
            blocks = worker.needed_of_checkpoint(worker.placement)
            copied.enter_context(session.memory.copying(blocks))
            facts = facts_of_part([block for block in blocks if worker.updates(block)])
            part = await self._threads.compute_lane(session.id).aside(session.blocks.copied)
            held = copied.pop_all()

        async def save() -> None:
            written = False
            try:
                with held:
                    written = await self._store.save(session.id, name, facts, part, pinned)
            finally:  # The loop reports a defect. The edge must not wait for this checkpoint.
                del self._saving[session.id]
                await tell(written)

        self._saving[session.id] = asyncio.create_task(save())
