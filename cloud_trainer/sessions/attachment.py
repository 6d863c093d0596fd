"""The attachment of a session: the term of the agent that has it, and the tasks that serve its streams."""

import asyncio
import time
from typing import NamedTuple

import grpc

from shared.placement import AGENT
from shared.transport.auth.callers import caller_host
from shared.transport.rpc.status import StatusError
from shared.wire.isthmus.v1.trainer_pb2 import Fence


class StreamName(NamedTuple):
    """The name of a stream within a session. A new stream of the same name replaces the one before."""

    worker: str = AGENT
    """Worker that has dialled it."""
    evaluation: int = 0
    """Number of its evaluation; 0 for training."""


TRAINING = StreamName()
"""The agent's own stream in training."""


class Attachment:
    """The attachment of one session. Changed on the event loop."""

    def __init__(self, session_id: str) -> None:
        self.term = 0
        """Term of the agent that attached last; 0 before the first."""
        self.host = ""
        """Address of that agent, without its port; empty where it is not known."""
        self.lost_at: float | None = None
        """Time at which the last stream was lost, by time.monotonic. None while any is attached, and if its peer has
        ended it."""
        self._session_id = session_id
        self._serving: dict[StreamName, asyncio.Task[None]] = {}

    @property
    def begun(self) -> bool:
        """Tell whether the session was ever attached."""
        return self.term > 0

    @property
    def attached(self) -> bool:
        """Tell whether any stream is attached."""
        return bool(self._serving)

    @property
    def has_agent(self) -> bool:
        """Tell whether a stream of the agent is attached; trainers may be linked without it."""
        return any(name.worker == AGENT for name in self._serving)

    def attach(self, serving: "asyncio.Task[None]", name: StreamName = TRAINING) -> None:
        """Note that a stream is attached. serving: the task that serves it. Cancelling the task ends the stream."""
        self._serving[name], self.lost_at = serving, None

    def detach(self, serving: "asyncio.Task[None]", name: StreamName = TRAINING) -> None:
        """Note that a stream has ended. If another has taken its place, nothing happens."""
        if self._serving.get(name) is not serving:
            return
        del self._serving[name]
        if not self._serving and (serving.cancelled() or serving.exception() is not None):
            self.lost_at = time.monotonic()

    async def wait_until_ended(self) -> None:
        """Wait until the streams that are attached now, if any, have ended."""
        if self._serving:
            await asyncio.wait(set(self._serving.values()))

    async def end(self) -> None:
        """End the attached streams, if any. On return, nothing that they brought is still being taken."""
        for serving in self._serving.values():
            serving.cancel()
        await self.wait_until_ended()
        self._serving = {name: serving for name, serving in self._serving.items() if not serving.done()}

    async def end_one(self, name: StreamName) -> None:
        """End one stream, if it is attached. On return, another may be attached at once."""
        while (serving := self._serving.get(name)) is not None and not serving.done():
            serving.cancel()
            await asyncio.wait({serving})

    def is_attached_for(self, evaluation: int) -> bool:
        """Tell whether any stream of an evaluation, or of training (0), is attached."""
        return any(name.evaluation == evaluation for name in self._serving)

    def give_up(self, evaluation: int) -> None:
        """Begin to end the streams of an evaluation, or of training (0)."""
        for name, serving in self._serving.items():
            if name.evaluation == evaluation:
                serving.cancel()

    async def end_evaluation(self, number: int) -> None:
        """End the streams of an evaluation."""
        for name in [name for name in self._serving if name.evaluation == number]:
            await self.end_one(name)

    def check_fence(self, fence: Fence) -> None:
        """Refuse a call of an agent that is not the one that attached last. Raises StatusError."""
        if fence.session_term < self.term:
            raise self.refusal(fence.session_term)

    def refusal(self, term: int) -> StatusError:
        """Build the refusal for a call of another term."""
        return StatusError(
            grpc.StatusCode.ABORTED,
            f"session {self._session_id} was attached with term {self.term}; a call of term {term} came{self.elsewhere()}",
        )

    def elsewhere(self) -> str:
        """Say, as the end of a sentence, where the agent that attached last is, and from where this call comes."""
        here = caller_host()
        if not self.host or not here:
            return ""
        where = f"both are at {here}" if self.host == here else f"that agent is at {self.host}, this one at {here}"
        return f" ({where}; does one run on a copy of the other's disk?)"
