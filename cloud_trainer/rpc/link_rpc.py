"""The call `Link`: it opens a link of a session and serves it until the dialling side ends it."""

import grpc

from cloud_trainer.rpc.serving import ServedStream, first_packet, serve_attached
from cloud_trainer.rpc.shutdown import TrainerShutdown
from cloud_trainer.sessions.attachment import StreamName
from cloud_trainer.sessions.fencing import check_version
from cloud_trainer.sessions.registry import SessionRegistry
from cloud_trainer.sessions.session import Session
from shared.config import LinkConfig
from shared.errors import ProtocolError
from shared.placement import AGENT
from shared.runtime.placement_executor import PlacementExecutor
from shared.transport.auth.callers import Caller, PeerLink, caller, no_such_ticket
from shared.transport.auth.scopes import Scope
from shared.transport.rpc.refusing import Context
from shared.transport.rpc.status import StatusError
from shared.wire.isthmus.v1.link_pb2 import LinkMessage, LinkOpened, LinkOpening


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
        first = await first_packet(context)
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
            await serve_attached(
                session,
                name,
                self._serve(executor, name, opened, context),
                self._sessions,
                lambda: session.links.failure(opening.evaluation),
            )
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

    async def _serve(self, executor: PlacementExecutor, name: StreamName, opened: LinkOpened, context: Context) -> None:
        served = ServedStream(context, executor.ends[name.worker], self._link)

        async def serve() -> None:
            await served.stream.write(LinkMessage(opened=opened))
            await executor.serve(name.worker, served.stream)

        await served.run(serve())


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
