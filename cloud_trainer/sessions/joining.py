"""The ways of an agent to a session: it joins, and restores a checkpoint if a worker lacks state.

A join rebuilds a session that is not in memory. A restore then brings the state of its blocks.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial

import grpc
import structlog

from cloud_trainer.sessions.fencing import Fencing, check_version
from cloud_trainer.sessions.session import Session
from cloud_trainer.sessions.session_registry import SessionRegistry
from cloud_trainer.sessions.session_store import SessionStore
from cloud_trainer.sessions.stored_sessions import SessionOpening
from cloud_trainer.sessions.threads import TrainerThreads
from cloud_trainer.sessions.worker.judging import ActivePlacement
from shared.bounds import MOST_STEPS, MOST_TERMS, MOST_WORKERS, is_session_id, is_step, is_term
from shared.checkpoint import MAX_NAMED, CheckpointName
from shared.checkpoint_wire import checkpoint_message, checkpoint_name
from shared.errors import ProtocolError, StorageError
from shared.training.block_state import BlockTensors
from shared.training.held_state import KEPT
from shared.transport.rpc.refusing import Context
from shared.transport.rpc.status import Kind, StatusError
from shared.wire.isthmus.v1 import trainer_pb2 as pb

_log = structlog.get_logger(__name__)
BuildAgain = Callable[[pb.OpenSessionRequest, pb.Placement, str], Awaitable[Session]]
"""Builder of a session from the request that opened it, under a placement."""
BeginInGroup = Callable[[Session, pb.Beginning], Awaitable[pb.RestoreWorkerResponse]]
"""Begins in the group of a member's session, and tells the point at which; raises IsthmusError if it may not."""


class Joining:
    """The answers, one at a time for each session. protos/isthmus/v1/trainer.proto says what each promises and refuses."""

    def __init__(
        self,
        sessions: SessionRegistry,
        store: SessionStore,
        fencing: Fencing,
        threads: TrainerThreads,
        build: BuildAgain,
        begin_in_group: BeginInGroup,
    ) -> None:
        self._sessions = sessions
        self._store = store
        self._fencing = fencing
        self._threads = threads
        self._build = build
        self._begin_in_group = begin_in_group

    async def join_session(self, request: pb.JoinSessionRequest, _context: Context) -> pb.JoinSessionResponse:
        """Make the caller the session's only agent. Raises StatusError."""
        check_version(request.protocol_version)
        session_id, term = request.session_id, request.session_term
        _check_possible(term)
        with ExitStack() as uses:
            with self._fencing.alone(session_id):
                found, record = await self._fencing.examine(session_id, term, uses)
                await self._learn_others(session_id, record, request.other_sessions)
                names, replicas = await self._store.names(session_id), await self._store.replicas(session_id)
                # Reserve the place before storing the term: a join that found no room after that would have used up its
                # term.
                with self._place(session_id) if found is None else nullcontext():
                    await self._fencing.take(session_id, record, term)
                    session = found or await self._build_again(session_id, record, uses)
                await session.join(term)
            _log.info("session joined", session=session_id, term=term, in_memory=found is not None)
            await self._fencing.check_kept(session)
            return pb.JoinSessionResponse(
                whole=session.worker.is_whole,
                lineage=session.worker.lineage,
                placement_version=session.worker.placement.version,
                next_step=session.worker.next_step,
                checkpoints=map(checkpoint_message, names[:MAX_NAMED]),
                replicas=[
                    pb.Replicas(checkpoint=checkpoint_message(name), blocks=replicas[name])
                    for name in sorted(replicas, reverse=True)[:MAX_NAMED]
                ],
                tickets=session.issue_tickets() if session.worker.is_whole else [],
            )

    async def _learn_others(self, session_id: str, record: SessionOpening, others: Sequence[str]) -> None:
        """Find what other trainers have of the run on the same store. Raises ProtocolError for impossible sessions."""
        _check_others(others)
        try:
            await self._store.learn_others(session_id, record, others)
        except StorageError as failure:
            _log.warning("other trainers' checkpoints not found", session=session_id, reason=str(failure))

    async def restore_worker(self, request: pb.RestoreWorkerRequest, _context: Context) -> pb.RestoreWorkerResponse:
        """Go back to a checkpoint, or begin again. Raises StatusError, and the errors of opening."""
        session_id, name = request.session_id, checkpoint_name(request.checkpoint)
        beginning = _checked_beginning(request.beginning) if request.HasField("beginning") else None
        with ExitStack() as uses:
            with self._fencing.alone(session_id):
                found, record = await self._fencing.find(session_id, uses)
                _check_term(session_id, request.fence, record)
                if found is not None and found.is_member and beginning is not None:
                    return await self._begin_member(found, request.fence, beginning)
                with self._place(session_id) if found is None else nullcontext():
                    session = found or await self._build_again(session_id, record, uses)
                session.check_goes_back()
                worker, term = session.worker, record.session_term
                session.attachment.term = term
                judged = await self._threads.build(session.judge.read, request.placement)
                if beginning is not None:
                    worker.check_has_no_state(judged)
                    work = partial(worker.begin_again, beginning.step, judged, beginning.lineage, term)
                else:
                    states = await self._states(session, name, judged)
                    work = partial(worker.restore, name.step, states, judged, term)
                try:
                    async with session.changing(request.fence):
                        await session.end_links()
                        await work()
                except BaseException:
                    self._sessions.remove(session)  # A half-loaded session is of no use.
                    await session.end()
                    raise
            await self._fencing.check_kept(session)
            digests = await self._threads.compute_lane(session_id).aside(session.blocks.frozen_digests)
            source = f"step {beginning.step}, with nothing" if beginning is not None else str(name)
            _log.info("session restored", session=session_id, checkpoint=source, term=session.attachment.term)
            return pb.RestoreWorkerResponse(frozen_digests=digests, tickets=session.issue_tickets())

    async def _begin_member(
        self, session: Session, fence: pb.Fence, beginning: pb.Beginning
    ) -> pb.RestoreWorkerResponse:
        async with session.changing(fence):
            await session.end_links()
            begun = await self._begin_in_group(session, beginning)
        digests = await self._threads.compute_lane(session.id).aside(session.blocks.frozen_digests)
        begun.MergeFrom(pb.RestoreWorkerResponse(frozen_digests=digests, tickets=session.issue_tickets()))
        return begun

    async def _states(
        self, session: Session, name: CheckpointName, judged: ActivePlacement
    ) -> Mapping[int, BlockTensors]:
        """Load what a worker needs of a checkpoint. Raises StatusError where it is not here."""
        needed = session.worker.needed_of_checkpoint(judged.placement)
        try:
            kept = () if session.worker.blocks.held.kept is None else (KEPT,)
            return await self._store.load(session.id, name, (*needed, *kept))
        except StorageError as failure:
            _log.warning("checkpoint not restored", session=session.id, checkpoint=str(name), reason=str(failure))
            raise StatusError(
                grpc.StatusCode.NOT_FOUND,
                f"blocks {needed} of checkpoint {name} of session {session.id} are not all here, or are damaged",
                kind=Kind.NOT_STORED,
            ) from failure

    @contextmanager
    def _place(self, session_id: str) -> Iterator[None]:
        """Reserve a place for a session that will be rebuilt. The place is released if the body fails.

        Raises StatusError if there is none.
        """
        self._sessions.reserve(session_id)
        try:
            yield
        except BaseException:
            self._sessions.release(session_id)
            raise

    async def _build_again(self, session_id: str, record: SessionOpening, uses: ExitStack) -> Session:
        """Rebuild the session in its reserved place, without the state of its blocks."""
        session = await self._build(record.request, record.request.placement, session_id)
        session.worker.is_blank = True
        self._sessions.add(session)
        uses.enter_context(self._sessions.using(session_id))
        return session


def _check_possible(term: int) -> None:
    """Refuse a term that no session can reach. Raises ProtocolError."""
    if not is_term(term):
        raise ProtocolError(f"a session cannot be joined with term {term}; {MOST_TERMS} is the largest")


def _check_others(session_ids: Sequence[str]) -> None:
    """Refuse names that no sessions at other trainers can have, and more than a run has. Raises ProtocolError."""
    if len(session_ids) > MOST_WORKERS:
        raise ProtocolError(f"{len(session_ids)} other sessions are named; a run has {MOST_WORKERS} at most")
    for session_id in session_ids:
        if not is_session_id(session_id):
            raise ProtocolError(f"{session_id[:40]!r} can be no session of another trainer")


def _checked_beginning(said: pb.Beginning) -> pb.Beginning:
    """Return the point at which a worker is to begin again. Raises ProtocolError for an impossible one."""
    if not is_term(said.lineage) or not is_step(said.step):
        raise ProtocolError(
            f"no worker can begin again at step {said.step} of lineage {said.lineage}: a step is {MOST_STEPS} at most, and a "
            f"lineage {MOST_TERMS}"
        )
    return said


def _check_term(session_id: str, fence: pb.Fence, record: SessionOpening) -> None:
    if fence.session_term != record.session_term or not fence.session_term:
        raise StatusError(
            grpc.StatusCode.ABORTED,
            f"session {session_id} was attached with term {record.session_term}; a call of term {fence.session_term} came",
        )
