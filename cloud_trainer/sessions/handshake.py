"""The trainer's side of the handshake: who may attach, and which state both sides go on with (docs/recovery.md).

The checks come first and change nothing. Then the term is stored and the stream before is ended, and the session goes on from
memory or from a checkpoint. Knows nothing of the stream that is attached.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack

import grpc
import structlog

from cloud_trainer.sessions.fencing import Fencing, check_version
from cloud_trainer.sessions.registry import SessionRegistry
from cloud_trainer.sessions.session import CutSession, cut_session, refuse_placement
from cloud_trainer.sessions.session_store import Record, SessionStore
from cloud_trainer.sessions.threads import TrainerThreads
from shared.checkpoint import MAX_NAMED, CheckpointName
from shared.errors import ProtocolError, StorageError
from shared.transport.rpc.status import StatusError
from shared.wire.isthmus.v1 import trainer_pb2 as pb

_log = structlog.get_logger(__name__)


class Handshake:
    """Attaches edges to sessions, one attach of a session at a time."""

    def __init__(
        self,
        sessions: SessionRegistry,
        store: SessionStore,
        fencing: Fencing,
        threads: TrainerThreads,
        build: Callable[[pb.OpenSessionRequest, str], Awaitable[CutSession]],
    ) -> None:
        """build: makes a session again from the request that opened it."""
        self._sessions = sessions
        self._store = store
        self._fencing = fencing
        self._threads = threads
        self._build = build

    async def attach(self, attach: pb.Attach, uses: ExitStack) -> tuple[CutSession, pb.Attached]:
        """Fence the session for this edge alone. Returns it with the answer. Raises StatusError or ProtocolError; see `Train`.

        uses: the session counts as used until this is closed, so that nobody takes its place before the stream is served.
        """
        check_version(attach.protocol_version)
        if len(attach.checkpoints) > MAX_NAMED:
            raise ProtocolError(f"{len(attach.checkpoints)} checkpoints are named; {MAX_NAMED} can be")
        with self._fencing.alone(attach.session_id):
            session, answer = await self._attach(attach, uses)
        await self._fencing.check_kept(session)
        return session, answer

    async def _attach(self, attach: pb.Attach, uses: ExitStack) -> tuple[CutSession, pb.Attached]:
        session, record, shared = await self._examine(attach, uses)
        if session is None:
            self._sessions.reserve(
                attach.session_id
            )  # before the term is stored: where there is no room, nothing is written
        try:
            await self._fencing.take(attach.session_id, record, attach.session_term)
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
    ) -> tuple[CutSession | None, Record, Sequence[CheckpointName]]:
        """The session if it is in memory, its record, and the checkpoints that both sides have. Changes nothing.

        Raises StatusError for an edge that may not attach, or with which there is nothing to go on from.
        """
        found, record = await self._fencing.examine(attach.session_id, attach.session_term, uses)
        refuse_placement(record.request)
        session = None if found is None else cut_session(found)
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

    async def _may_continue(self, session: CutSession | None, attach: pb.Attach) -> bool:
        """Whether training may be able to go on from memory; while a stream is attached, only its end can tell."""
        return session is not None and (
            session.attachment.attached
            or await self._threads.compute_lane(session.id).run(session.training.continues, attach)
        )

    async def _restore(
        self,
        attach: pb.Attach,
        record: Record,
        session: CutSession | None,
        shared: Sequence[CheckpointName],
        uses: ExitStack,
    ) -> tuple[CutSession, pb.Attached]:
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
            digests = await self._threads.compute_lane(session.id).aside(session.block_digests)
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

    async def _rebuilt(self, session_id: str, record: Record, uses: ExitStack) -> CutSession:
        """Build the session again, in the place that is reserved for it."""
        session = await self._build(record.request, session_id)
        self._sessions.add(session)
        uses.enter_context(self._sessions.using(session_id))
        return session


def _listed(names: Sequence[CheckpointName]) -> str:
    return "checkpoints " + ", ".join(map(str, names)) if names else "no checkpoint"
