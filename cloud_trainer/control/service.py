"""`TrainerControlService`: the view and the actions of an operator, or of a subject on its own sessions."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing

import grpc
import structlog

from cloud_trainer.groups.trained_group import TrainedGroup
from cloud_trainer.metrics import QUEUES, TrainerMetrics
from cloud_trainer.sessions.opened_model import run_of
from cloud_trainer.sessions.session import Session
from cloud_trainer.sessions.session_registry import SessionRegistry
from cloud_trainer.sessions.session_store import SessionStore
from shared.control.answers import deployment_status, level_now, set_level, watch
from shared.placement import AGENT
from shared.transport.auth.callers import caller
from shared.transport.auth.scopes import Scope
from shared.transport.rpc.status import StatusError
from shared.wire.isthmus.v1 import control_pb2 as pb

_log = structlog.get_logger(__name__)
SERVICE = pb.DESCRIPTOR.services_by_name["TrainerControlService"]


class TrainerControl:
    """The answers. protos/isthmus/v1/control.proto says what each promises and refuses."""

    def __init__(
        self,
        sessions: SessionRegistry,
        groups: Sequence[TrainedGroup],
        store: SessionStore,
        metrics: TrainerMetrics,
        end_session: Callable[[str, bool], Awaitable[None]],
        stopping: asyncio.Event,
        device: str,
    ) -> None:
        """end_session: frees a session, and forgets it unless it is to be resumable; raises StatusError.

        stopping: set to stop the trainer.
        """
        self._sessions = sessions
        self._groups = groups
        self._store = store
        self._metrics = metrics
        self._end_session = end_session
        self._stopping = stopping
        self._device = device
        self._began_seconds = time.monotonic()
        self.address = ""
        """Address at which edges reach the trainer."""

    async def get_status(
        self, _request: pb.TrainerControlServiceGetStatusRequest
    ) -> pb.TrainerControlServiceGetStatusResponse:
        """Report the state of the trainer."""
        return pb.TrainerControlServiceGetStatusResponse(status=self._status())

    async def watch(
        self, request: pb.TrainerControlServiceWatchRequest
    ) -> AsyncIterator[pb.TrainerControlServiceWatchResponse]:
        """The same again and again."""
        interval = request.interval if request.HasField("interval") else None
        async with aclosing(watch(interval, self._status, self._stopping)) as statuses:
            async for status in statuses:
                yield pb.TrainerControlServiceWatchResponse(status=status)

    async def list_sessions(
        self, _request: pb.TrainerControlServiceListSessionsRequest
    ) -> pb.TrainerControlServiceListSessionsResponse:
        """Open sessions, and stored ones."""
        sessions = self._open_sessions()
        for status in sessions:
            status.checkpoint_steps.extend(await self._checkpoint_steps(status.session_id))
        for session_id, (record, names) in (await self._store.listed(_sees)).items():
            if session_id in self._sessions:
                continue
            steps = [name.step for name in names]
            elsewhere = await self._store.is_elsewhere(session_id)
            sessions.append(
                pb.TrainerSessionStatus(
                    session_id=session_id,
                    run_id=run_of(record.request, session_id),
                    state=pb.TRAINER_SESSION_STATE_ELSEWHERE if elsewhere else pb.TRAINER_SESSION_STATE_KEPT,
                    subject=record.subject,
                    model=record.request.model.factory,
                    step=steps[0] if steps else 0,
                    session_term=record.session_term,
                    checkpoint_steps=steps,
                )
            )
        return pb.TrainerControlServiceListSessionsResponse(sessions=sessions)

    async def list_groups(self, _request: pb.ListGroupsRequest) -> pb.ListGroupsResponse:
        """List groups, with their members."""
        return pb.ListGroupsResponse(groups=self._groups_seen())

    async def free_rank(self, request: pb.FreeRankRequest) -> pb.FreeRankResponse:
        """Have a rank of a group belong to nobody."""
        group = next((each for each in self._groups if each.config.name == request.group), None)
        if group is None or request.rank not in group.config.ranks:
            raise StatusError(
                grpc.StatusCode.NOT_FOUND, f"this trainer has no rank {request.rank} of a group {request.group[:63]!r}"
            )
        had_owner = await group.free(request.rank)
        if (session := group.seats.sessions.get(request.rank)) is not None:
            await self._end_session(session.id, False)
        _log.info("a rank was freed by an operator", group=group.config.name, rank=request.rank)
        return pb.FreeRankResponse(had_owner=had_owner)

    async def close_session(
        self, request: pb.TrainerControlServiceCloseSessionRequest
    ) -> pb.TrainerControlServiceCloseSessionResponse:
        """End a session, whichever edge has attached it."""
        session_id = request.session_id
        owner, session = self._sessions.owner(session_id), self._sessions.find(session_id)
        run_id = session_id if session is None else session.run_id
        if owner is None and (record := await self._store.record(session_id)) is not None:
            owner, run_id = record.subject, run_of(record.request, session_id)
        if owner is None or not _sees(owner):
            raise self._sessions.not_found(session_id)
        if session_id not in self._sessions and await self._store.is_elsewhere(session_id):
            raise StatusError(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"session {session_id} is open in another trainer that keeps its sessions in the same place "
                "(checkpoints.location); close it there",
            )
        await self._end_session(session_id, request.resumable)
        _log.info("session closed by an operator", session=session_id, run=run_id, resumable=request.resumable)
        return pb.TrainerControlServiceCloseSessionResponse()

    async def drain(self, _request: pb.TrainerControlServiceDrainRequest) -> pb.TrainerControlServiceDrainResponse:
        """Stop the trainer."""
        _log.info("told to drain")
        self._stopping.set()
        return pb.TrainerControlServiceDrainResponse()

    async def set_log_level(
        self, request: pb.TrainerControlServiceSetLogLevelRequest
    ) -> pb.TrainerControlServiceSetLogLevelResponse:
        """Log more or less."""
        return pb.TrainerControlServiceSetLogLevelResponse(previous=set_level(request.level))

    def _status(self) -> pb.TrainerStatus:
        metrics, stopping = self._metrics, self._stopping.is_set()
        status = pb.TrainerStatus(
            state=pb.TRAINER_STATE_STOPPING if stopping else pb.TRAINER_STATE_SERVING,
            address=self.address,
            device=self._device,
            open_sessions=len(self._sessions),
            max_sessions=self._sessions.limit,
            steps=int(metrics.steps.value),
            samples=int(metrics.samples.value),
            bytes_up=int(metrics.bytes_up.value),
            bytes_down=int(metrics.bytes_down.value),
            queues=pb.TrainerQueues(**{queue: metrics.waiting(queue) for queue in QUEUES}),
            log_level=level_now(),
            sessions=self._open_sessions(),
            groups_that_wait=[group for group in self._groups_seen() if _waits(group)],
        )
        status.running.FromNanoseconds(int((time.monotonic() - self._began_seconds) * 1e9))
        return status

    def _groups_seen(self) -> list[pb.GroupStatus]:
        """List the groups that the caller may see."""
        who = caller()
        seen = [group for group in self._groups if Scope.OPERATE in who.scopes or group.config.admits(who.subject)]
        return [self._group_status(group) for group in seen]

    def _group_status(self, group: TrainedGroup) -> pb.GroupStatus:
        missing, sessions, figures = group.missing, group.seats.sessions, group.figures
        taking_part, late = group.members, group.late
        members = []
        for rank in group.config.ranks:
            member = pb.GroupMemberStatus(
                rank=rank,
                takes_part=rank in taking_part,
                awaited=rank in missing,
                left_out=figures.left_out[rank],
                late=figures.late[rank],
            )
            if (seconds := late.get(rank)) is not None:
                member.late_for.FromNanoseconds(int(seconds * 1e9))
            if (subject := group.owner(rank)) is not None and _sees(subject):
                member.owner = subject
            if (session := sessions.get(rank)) is not None:
                member.linked, member.step = session.attachment.attached, session.worker.next_step
                owner = self._sessions.owner(session.id)
                if owner is not None and _sees(owner):  # other members learn nothing of its session
                    member.session_id, member.subject = session.id, owner
            members.append(member)
        return pb.GroupStatus(
            name=group.config.name,
            size=group.config.size,
            life=group.life,
            step=group.step,
            steps=group.steps,
            members=members,
        )

    def _open_sessions(self) -> list[pb.TrainerSessionStatus]:
        """List the open sessions that the caller may see."""
        return [
            _session_status(session_id, owner, session)
            for session_id, owner, session in self._sessions.owned
            if _sees(owner)
        ]

    async def _checkpoint_steps(self, session_id: str) -> list[int]:
        return [name.step for name in await self._store.names(session_id)]


def _sees(owner: str) -> bool:
    """Tell whether the caller may see the sessions of this subject."""
    who = caller()
    return owner == who.subject or Scope.OPERATE in who.scopes


def _waits(group: pb.GroupStatus) -> bool:
    return any(member.HasField("late_for") for member in group.members)


def _session_status(session_id: str, owner: str, session: Session | None) -> pb.TrainerSessionStatus:
    status = pb.TrainerSessionStatus(session_id=session_id, subject=owner, state=pb.TRAINER_SESSION_STATE_OPENING)
    if session is None:
        return status
    status.state = pb.TRAINER_SESSION_STATE_IDLE
    if session.attachment.attached:
        status.state = pb.TRAINER_SESSION_STATE_ATTACHED
    elif session.attachment.lost_at is not None:
        status.state = pb.TRAINER_SESSION_STATE_LOST
    status.MergeFrom(
        pb.TrainerSessionStatus(
            run_id=session.run_id,
            model=session.request.model.factory,
            step=session.worker.next_step,
            deployment=deployment_status(session.worker.deployment, len(session.blocks.held.chain.blocks)),
            held_blocks=session.worker.shown_blocks,
            missing_links=session.links.missing,
            session_term=session.attachment.term,
            bytes_up=session.figures.bytes_up,
            bytes_down=session.figures.bytes_down,
            loss=session.figures.loss,
            downlink_bits_per_second=session.worker.link_rates.get(AGENT),
        )
    )
    return status
