"""The call `Link`: it opens a link of a session and serves it until the dialling side or another party ends it."""

import asyncio
from collections.abc import Coroutine
from functools import partial

import grpc
import structlog

from cloud_trainer.rpc.shutdown import TrainerShutdown
from cloud_trainer.sessions.attachment import StreamName
from cloud_trainer.sessions.fencing import check_version
from cloud_trainer.sessions.session import Session
from cloud_trainer.sessions.session_registry import SessionRegistry
from shared.codec import aligned_buffer
from shared.config import LinkConfig
from shared.errors import ProtocolError, one_line
from shared.placement import AGENT
from shared.runtime import StallWatch
from shared.runtime.placement_executor import PlacementExecutor
from shared.transport.auth.callers import Caller, PeerLink, caller, no_such_ticket
from shared.transport.auth.scopes import Scope
from shared.transport.rpc.refusing import Context
from shared.transport.rpc.status import Kind, StatusError
from shared.transport.stream.duplex import Duplex
from shared.transport.stream.framing import Assembler
from shared.transport.stream.packets import Damaged, Packet, PacketChannel, undamaged
from shared.wire.isthmus.v1.link_pb2 import LinkMessage, LinkOpened, LinkOpening

_log = structlog.get_logger(__name__)


class LinkRpc:
    """All links on which others dial this trainer."""

    def __init__(self, config: LinkConfig, sessions: SessionRegistry, shutdown: TrainerShutdown) -> None:
        self._link = config
        self._sessions = sessions
        self._shutdown = shutdown

    def find_ticket(self, ticket: str) -> Caller | None:
        """Find the caller with a ticket: it counts as the owner of the session, and may do no more than that link needs."""
        for _, owner, session in self._sessions.owned:
            if session is not None and (found := session.tickets.find(ticket)) is not None:
                return Caller(owner, frozenset({Scope.TRAIN}), found)
        return None

    async def link(self, _requests: object, context: Context) -> None:
        """Open a link and serve it to its end."""
        first = await _first_packet(context)
        opening = first.message.opening
        if first.message != LinkMessage(opening=opening) or first.payload:
            raise ProtocolError("a link begins with a message that opens it and does nothing else")
        check_version(opening.protocol_version)
        self._shutdown.check_open()
        with self._sessions.using(opening.session_id) as session:
            name = StreamName(opening.worker, opening.evaluation)
            self._executor_for(session, opening)  # before the link that is open is ended for it
            await session.attachment.end_one(name)
            executor = self._executor_for(session, opening)
            opened = LinkOpened(next_ticket=_take_ticket(session, opening))
            # There is no pause from here on: the checks hold until the stream is attached.
            await self._serve_attached(session, name, self._serve(executor, name, opened, context))
            await session.links.note_ended(opening.evaluation)

    def _executor_for(self, session: Session, opening: LinkOpening) -> PlacementExecutor:
        """Return the steps that the link is for.

        Raises StatusError if there is no such link now, or not for this caller, and the failure of a link behind it.
        """
        if opening.session_term != session.attachment.term or not session.attachment.begun:
            raise session.attachment.refusal(opening.session_term)
        if (failure := session.links.failure(opening.evaluation)) is not None:
            raise failure
        executor = session.executor_of(opening.evaluation)
        if opening.worker not in session.worker.dialers(opening.evaluation):
            raise StatusError(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"worker {opening.worker[:40]!r} does not dial {session.worker.name!r} under placement "
                f"{session.worker.placement.version}",
            )
        shown = caller().ticket
        if shown is None and opening.worker != AGENT:
            raise StatusError(
                grpc.StatusCode.UNAUTHENTICATED,
                f"worker {opening.worker[:40]!r} is no agent, so it dials with a ticket",
            )
        if shown is not None and shown.link != _link(session, opening):
            raise no_such_ticket()
        return executor

    async def _serve_attached(self, session: Session, name: StreamName, work: Coroutine[object, object, None]) -> None:
        """Serve a stream as one of its session, until its peer or another party ends it.

        Raises the error of `work`; where another party has ended it, the failure of a link behind it, or a StatusError.
        """
        serving = asyncio.create_task(work)
        session.attachment.attach(serving, name)
        term, who = session.attachment.term, {"session": session.id, "worker": name.worker}
        _log.info("worker attached", **who, term=term, step=session.worker.next_step)
        try:
            await asyncio.wait({serving})
            if serving.cancelled():
                raise session.links.failure(name.evaluation) or self._refusal_of_ended(session, term)
            serving.result()
        finally:
            serving.cancel()
            await asyncio.wait({serving})
            _log.info("worker detached", **who, step=session.worker.next_step, reason=_reason(serving))
            session.attachment.detach(serving, name)

    def _refusal_of_ended(self, session: Session, term: int) -> StatusError:
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
        if self._sessions.find(session.id) is not session:
            code = grpc.StatusCode.NOT_FOUND if session.forgotten else grpc.StatusCode.ABORTED
            return StatusError(code, f"session {session.id} was closed while it trained")
        return StatusError(grpc.StatusCode.UNAVAILABLE, "nothing was heard of what was sent; attach again")

    async def _serve(self, executor: PlacementExecutor, name: StreamName, opened: LinkOpened, context: Context) -> None:
        """Answer the first message and serve the stream. It is given up, with this task, when the peer is silent for long."""
        end, link = executor.ends[name.worker], self._link
        stream: Duplex[LinkMessage, LinkMessage] = Duplex(
            LinkMessage,
            PacketChannel(partial(_read, context), context.write),
            assembler=Assembler(end.accept, aligned_buffer),
            largest_chunk_bytes=link.chunk_bytes,
            window_bytes=link.window_bytes,
            note_delivered=end.note_delivered,
        )
        serving = asyncio.current_task()
        assert serving is not None, "a coroutine runs in a task"
        watch = StallWatch(lambda: stream.quiet_seconds, link.stall_seconds, lambda _seconds: serving.cancel())
        try:
            await stream.write(LinkMessage(opened=opened))
            await executor.serve(name.worker, stream)
        finally:
            watch.stop()
        # A lost peer looks at first like one that has ended its stream; a last word tells them apart, for it cannot be sent.
        await stream.write(LinkMessage())


def _link(session: Session, opening: LinkOpening) -> PeerLink:
    return PeerLink(session.id, session.attachment.term, opening.worker, opening.evaluation)


def _take_ticket(session: Session, opening: LinkOpening) -> str:
    """Return the next ticket for the same link; empty for the agent, which needs none. Raises StatusError."""
    if (shown := caller().ticket) is None:
        return ""
    following = session.tickets.take(shown, _link(session, opening))
    if following is None:
        raise no_such_ticket()
    return following


async def _first_packet(context: Context) -> Packet[LinkMessage]:
    """Read the first message of a stream. Raises ProtocolError where there is none."""
    received: Packet[LinkMessage] | Damaged | None = await _read(context)
    if received is None:
        raise ProtocolError("the stream ended before it said what it is")
    return undamaged(received)


async def _read(context: Context) -> Packet[LinkMessage] | Damaged | None:
    packet = await context.read()
    return None if packet is grpc.aio.EOF else packet


def _reason(serving: "asyncio.Task[None]") -> str:
    """Explain why a stream that was served has ended."""
    if serving.cancelled():
        return "the stream was given up"
    failure = serving.exception()
    return "the worker has ended the stream" if failure is None else one_line(str(failure) or type(failure).__name__)
