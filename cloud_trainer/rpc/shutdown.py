"""The end of a trainer: it takes nothing new, and its agents have a while to hand over, or to take a checkpoint, and leave."""

import asyncio
from contextlib import suppress

import grpc

from cloud_trainer.sessions.checkpointer import SessionCheckpointer
from cloud_trainer.sessions.session_registry import SessionRegistry
from shared.transport.rpc.status import StatusError


class TrainerShutdown:
    """A stop of the trainer, which `run` begins."""

    def __init__(self, sessions: SessionRegistry, checkpointer: SessionCheckpointer) -> None:
        self.begun = False
        self._sessions = sessions
        self._checkpointer = checkpointer

    def check_open(self) -> None:
        """Refuse to begin or resume a training once the trainer is about to stop. Raises StatusError."""
        if self.begun:
            raise StatusError(grpc.StatusCode.UNAVAILABLE, "the trainer is about to stop; try again")

    async def run(self, seconds: float) -> None:
        """Have every agent hand over, or take a checkpoint, and leave. Returns when all have, or after so many seconds.

        An agent that hands over has offered the blocks to another trainer, and closes the session when nobody needs them here.
        """
        self.begun = True
        for session in self._sessions.built:
            session.worker.executor.say_stopping()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while attached := [each.attachment for each in self._sessions.built if each.attachment.attached]:
                    await asyncio.gather(*(attachment.wait_until_ended() for attachment in attached))
                    await asyncio.sleep(0)
                await self._checkpointer.wait_for_all()  # before a wait that may take all the time
                for session in self._sessions.built:
                    if session.tickets.offers_memory:
                        await session.ended.wait()
