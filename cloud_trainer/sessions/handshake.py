"""The trainer's side of the handshake: who may attach, and which state both sides go on with (docs/recovery.md).

The checks come first and change nothing. Then the term is stored and the stream before is ended, and the session goes on from
memory or from a checkpoint. Knows nothing of the stream that is attached.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack

import grpc
import structlog

from cloud_trainer.sessions.registry import SessionRegistry
from cloud_trainer.sessions.session import Session
from cloud_trainer.sessions.session_store import Record, SessionStore
from cloud_trainer.sessions.threads import TrainerThreads
from shared.checkpoint import MAX_NAMED, CheckpointName
from shared.errors import ProtocolError, StorageError
from shared.transport.auth.callers import caller
from shared.transport.rpc.status import StatusError
from shared.version import NO_VERSION, PROTOCOL_VERSION
from shared.wire.isthmus.v1 import trainer_pb2 as pb

_log = structlog.get_logger(__name__)
_STORAGE_RETRY_SECONDS = 30.0
"""When a disk that is full may have room again: an operator has to make it."""


class Handshake:
    """Attaches edges to sessions, one attach of a session at a time."""

    def __init__(
        self,
        sessions: SessionRegistry,
        store: SessionStore,
        threads: TrainerThreads,
        build: Callable[[pb.OpenSessionRequest, str], Awaitable[Session]],
    ) -> None:
        """build: makes a session again from the request that opened it."""
        self._sessions = sessions
        self._store = store
        self._threads = threads
        self._build = build
        self._attaching: set[str] = set()

    def __contains__(self, session_id: str) -> bool:
        """Whether an attach of this session is under way."""
        return session_id in self._attaching

    async def attach(self, attach: pb.Attach, uses: ExitStack) -> tuple[Session, pb.Attached]:
        """Fence the session for this edge alone. Returns it with the answer. Raises StatusError or ProtocolError; see `Train`.

        uses: the session counts as used until this is closed, so that nobody takes its place before the stream is served.
        """
        check_version(attach.protocol_version)
        if len(attach.checkpoints) > MAX_NAMED:
            raise ProtocolError(f"{len(attach.checkpoints)} checkpoints are named; {MAX_NAMED} can be")
        session_id = attach.session_id
        if session_id in self._attaching:
            raise StatusError(
                grpc.StatusCode.UNAVAILABLE, f"session {session_id} is being attached just now; try again"
            )
        self._attaching.add(session_id)
        try:
            session, answer = await self._attach(attach, uses)
        finally:
            self._attaching.discard(session_id)
        if self._sessions.find(session_id) is session:
            return session, answer
        if session.forgotten:
            await self._store.forget(session_id)  # the fence has written its record again
            raise self._sessions.not_found(session_id)
        raise StatusError(
            grpc.StatusCode.UNAVAILABLE, f"session {session_id} was given up while it was being attached; try again"
        )

    async def _attach(self, attach: pb.Attach, uses: ExitStack) -> tuple[Session, pb.Attached]:
        session, record, shared = await self._examine(attach, uses)
        if session is None:
            self._sessions.reserve(
                attach.session_id
            )  # before the term is stored: where there is no room, nothing is written
        try:
            await self._fence(attach, record)
        except BaseException:
            if session is None:
                self._sessions.release(attach.session_id)
            raise
        if session is not None:
            session.attachment.term = attach.session_term
            await session.attachment.end()
            if await self._threads.compute_lane(session.id).run(session.training.continues, attach):
                return session, pb.Attached(
                    next_step=session.training.next_step, deployment=session.training.deployment
                )
        try:
            return await self._restore(attach, record, session, shared, uses)
        except BaseException:
            self._sessions.release(attach.session_id)
            raise

    async def _examine(
        self, attach: pb.Attach, uses: ExitStack
    ) -> tuple[Session | None, Record, Sequence[CheckpointName]]:
        """The session if it is in memory, its record, and the checkpoints that both sides have. Changes nothing.

        Raises StatusError for an edge that may not attach, or with which there is nothing to go on from.
        """
        subject = caller().subject
        self._sessions.check_owner(attach.session_id)
        session: Session | None = None
        if self._sessions.find(attach.session_id) is not None:
            session = uses.enter_context(self._sessions.using(attach.session_id))
            record = Record(session.request, session.attachment.term, subject)
        else:
            record = await self._stored_record(attach.session_id, subject)
        if attach.session_term <= record.session_term:
            raise StatusError(
                grpc.StatusCode.ABORTED,
                f"session {attach.session_id} was attached with term {record.session_term} before term "
                f"{attach.session_term} came: another agent has it",
            )
        if session is not None and session.measured:
            raise StatusError(
                grpc.StatusCode.FAILED_PRECONDITION, f"session {session.id} was measured, which has changed its weights"
            )
        named = {CheckpointName(name.lineage, name.step) for name in attach.checkpoints}
        shared = [name for name in await self._store.names(attach.session_id) if name in named]
        if session is None and not named:
            raise self._sessions.not_found(attach.session_id)
        if not shared and not await self._may_continue(session, attach):
            raise StatusError(
                grpc.StatusCode.NOT_FOUND,
                f"session {attach.session_id} cannot go on: the edge has {_listed(sorted(named))} and the trainer none of them",
            )
        return session, record, shared

    async def _fence(self, attach: pb.Attach, record: Record) -> None:
        """Store the term before anything is done under it. Raises StatusError."""
        try:
            if await self._store.fence(attach.session_id, record, attach.session_term):
                return
        except StorageError as failure:
            _log.warning(
                "session not attached: its term cannot be kept", session=attach.session_id, reason=str(failure)
            )
            raise StatusError(
                grpc.StatusCode.UNAVAILABLE,
                f"session {attach.session_id} cannot be attached now: the trainer cannot write what keeps other agents out "
                "of it; is its disk full?",
                _STORAGE_RETRY_SECONDS,
            ) from failure
        raise StatusError(
            grpc.StatusCode.ABORTED,
            f"session {attach.session_id} was attached with term {attach.session_term} or a later one: another agent has it",
        )

    async def _may_continue(self, session: Session | None, attach: pb.Attach) -> bool:
        """Whether training may be able to go on from memory; while a stream is attached, only its end can tell."""
        return session is not None and (
            session.attachment.attached
            or await self._threads.compute_lane(session.id).run(session.training.continues, attach)
        )

    async def _stored_record(self, session_id: str, subject: str) -> Record:
        record = await self._store.record(session_id)
        if record is None or record.subject != subject:
            raise self._sessions.not_found(session_id)
        return record

    async def _restore(
        self,
        attach: pb.Attach,
        record: Record,
        session: Session | None,
        shared: Sequence[CheckpointName],
        uses: ExitStack,
    ) -> tuple[Session, pb.Attached]:
        """Restore the newest checkpoint that both sides have and that is whole."""
        for name in shared:
            try:
                checkpoint = await self._store.load(attach.session_id, name)
            except StorageError as failure:
                _log.warning("checkpoint damaged; an older one counts", checkpoint=str(name), reason=str(failure))
                continue
            session = session or await self._rebuilt(attach.session_id, record, uses)
            session.attachment.term = attach.session_term
            try:
                await self._threads.compute_lane(session.id).aside(
                    session.training.restore, checkpoint, attach.session_term
                )
            except BaseException:
                self._sessions.remove(session)  # half-loaded, it is of no use
                raise
            digests = await self._threads.compute_lane(session.id).aside(session.training.block_digests)
            _log.info("session restored", session=session.id, checkpoint=str(name), term=attach.session_term)
            return session, pb.Attached(
                next_step=session.training.next_step,
                restored=pb.CheckpointName(lineage=name.lineage, step=name.step),
                deployment=session.training.deployment,
                block_digests=digests,
            )
        raise StatusError(
            grpc.StatusCode.NOT_FOUND,
            f"session {attach.session_id} cannot go on: the trainer has none of the edge's checkpoints whole, and not the "
            "state that the edge has in memory",
        )

    async def _rebuilt(self, session_id: str, record: Record, uses: ExitStack) -> Session:
        """Build the session again, in the place that is reserved for it."""
        self._sessions.add(await self._build(record.request, session_id))
        return uses.enter_context(self._sessions.using(session_id))


def check_version(version: int) -> None:
    """Refuse an edge that speaks another version of the contract. Raises StatusError."""
    if version != PROTOCOL_VERSION:
        raise StatusError(
            grpc.StatusCode.FAILED_PRECONDITION,
            f"the edge speaks protocol version {version}; this trainer speaks {PROTOCOL_VERSION}",
            wanted=version == NO_VERSION,
        )


def _listed(names: Sequence[CheckpointName]) -> str:
    return "checkpoints " + ", ".join(map(str, names)) if names else "no checkpoint"
