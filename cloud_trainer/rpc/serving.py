"""The shared parts of every link that this trainer serves: its first message, its watch, its place in the session, and
its end."""

import asyncio
import functools
from collections.abc import Awaitable, Callable, Coroutine

import grpc
import structlog

from cloud_trainer.sessions.attachment import StreamName
from cloud_trainer.sessions.registry import SessionRegistry
from cloud_trainer.sessions.session import Session
from shared.codec import aligned_buffer
from shared.config import LinkConfig
from shared.errors import ProtocolError, one_line
from shared.runtime import StallWatch
from shared.runtime.link_end import LinkEnd
from shared.transport.rpc.refusing import Context
from shared.transport.rpc.status import Kind, StatusError
from shared.transport.stream.duplex import Duplex
from shared.transport.stream.framing import Assembler
from shared.transport.stream.packets import Damaged, Packet, PacketChannel, undamaged
from shared.wire.isthmus.v1.link_pb2 import LinkMessage

_log = structlog.get_logger(__name__)


async def first_packet(context: Context) -> Packet[LinkMessage]:
    """The first message of a stream. Raises ProtocolError where there is none."""
    received: Packet[LinkMessage] | Damaged | None = await _read(context)
    if received is None:
        raise ProtocolError("the stream ended before it said what it is")
    return undamaged(received)


class ServedStream:
    """One stream, from the answer to its first message on."""

    def __init__(
        self,
        context: Context,
        end: LinkEnd,
        link: LinkConfig,
    ) -> None:
        """end: judges what the peer announces, and tells what is delivered."""
        self._stall_seconds = link.stall_seconds
        self.stream: Duplex[LinkMessage, LinkMessage] = Duplex(
            LinkMessage,
            PacketChannel(functools.partial(_read, context), context.write),
            assembler=Assembler(end.accept, aligned_buffer),
            largest_chunk_bytes=link.chunk_bytes,
            window_bytes=link.window_bytes,
            note_delivered=end.note_delivered,
        )

    async def run(self, work: Awaitable[None]) -> None:
        """Do the work of the stream to its end. It is given up, with this task, when the peer is silent for too long."""
        serving = asyncio.current_task()
        assert serving is not None, "a coroutine runs in a task"
        watch = StallWatch(lambda: self.stream.quiet_seconds, self._stall_seconds, lambda _seconds: serving.cancel())
        try:
            await work
        finally:
            watch.stop()
        # A lost peer looks at first like one that has ended its stream; a last word tells them apart, for it cannot be sent.
        await self.stream.write(LinkMessage())


async def serve_attached(
    session: Session,
    name: StreamName,
    work: Coroutine[object, object, None],
    sessions: SessionRegistry,
    failure: Callable[[], BaseException | None] = lambda: None,
) -> None:
    """Serve a stream as one of its session, until its peer or another party ends it.

    failure: the reason of another party, after a failure. Raises the error of `work`, and that failure or a StatusError
    if another party has ended it.
    """
    serving = asyncio.create_task(work)
    session.attachment.attach(serving, name)
    term, who = session.attachment.term, {"session": session.id, "worker": name.worker}
    _log.info("worker attached", **who, term=term, step=session.worker.next_step)
    try:
        await asyncio.wait({serving})
        if serving.cancelled():
            raise failure() or _refusal_of_ended(session, term, sessions)
        serving.result()
    finally:
        serving.cancel()
        await asyncio.wait({serving})
        _log.info("worker detached", **who, step=session.worker.next_step, reason=_reason(serving))
        session.attachment.detach(serving, name)


def _refusal_of_ended(session: Session, term: int, sessions: SessionRegistry) -> StatusError:
    if session.attachment.term != term:
        return StatusError(
            grpc.StatusCode.ABORTED,
            f"session {session.id} was attached with term {session.attachment.term}; this stream is of another"
            f"{session.attachment.elsewhere()}",
        )
    if session.is_replaced:
        why = "its group has gone back or ended, or its member has opened another one"
        sentence = f"session {session.id} has ended, because {why}"
        return StatusError(grpc.StatusCode.FAILED_PRECONDITION, sentence, kind=Kind.LOST)
    if sessions.find(session.id) is not session:
        code = grpc.StatusCode.NOT_FOUND if session.forgotten else grpc.StatusCode.ABORTED
        return StatusError(code, f"session {session.id} was closed while it trained")
    return StatusError(grpc.StatusCode.UNAVAILABLE, "nothing was heard of what was sent; attach again")


def _reason(serving: "asyncio.Task[None]") -> str:
    """Explain why a stream that was served has ended."""
    if serving.cancelled():
        return "the stream was given up"
    failure = serving.exception()
    return "the worker has ended the stream" if failure is None else one_line(str(failure) or type(failure).__name__)


async def _read(context: Context) -> Packet[LinkMessage] | Damaged | None:
    packet = await context.read()
    return None if packet is grpc.aio.EOF else packet
