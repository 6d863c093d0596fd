"""The calls of an agent that has a session, but for its joins and its links."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from typing import TypeVar

import grpc
import structlog

from cloud_trainer.groups.groups import Groups
from cloud_trainer.peers.dialer import PeerDialer
from cloud_trainer.sessions.checkpointer import SessionCheckpointer
from cloud_trainer.sessions.session import Session
from cloud_trainer.sessions.session_registry import SessionRegistry
from cloud_trainer.sessions.threads import TrainerThreads
from shared.bounds import MOST_STEPS, MOST_WORKERS, is_session_id, is_step, is_term
from shared.client.link_measurement import NotMeasuredError, measure_link
from shared.concurrency.tasks import gathered
from shared.errors import ProtocolError
from shared.execution.failures import translate_failures
from shared.model.build import check_run
from shared.placement import GROUP
from shared.telemetry.logs import bind_run
from shared.training.measure import stage_step, untouched
from shared.training.policies import policy_of_stage
from shared.training.stage import lone_stage
from shared.training.step_seconds import StepSeconds
from shared.transport.rpc.refusing import Context
from shared.transport.rpc.status import StatusError
from shared.wire.isthmus.v1 import trainer_pb2 as pb

_log = structlog.get_logger(__name__)
T = TypeVar("T")
_MAX_REPEATS = 1000
"""The most steps of one measurement."""


class SessionCalls:
    """The answers. protos/isthmus/v1/trainer.proto says what each promises and refuses."""

    def __init__(
        self,
        sessions: SessionRegistry,
        groups: Groups,
        checkpointer: SessionCheckpointer,
        threads: TrainerThreads,
        dialer: PeerDialer,
    ) -> None:
        self._sessions = sessions
        self._groups = groups
        self._checkpointer = checkpointer
        self._threads = threads
        self._dialer = dialer

    async def commit_placement(
        self, request: pb.CommitPlacementRequest, _context: Context
    ) -> pb.CommitPlacementResponse:
        """Put another placement into force."""
        with self._sessions.using(request.session_id) as session:
            session.check_joined(request.fence)
            judged = await self._threads.build(session.judge.read, request.placement)
            placement = judged.placement
            session.check_may_follow(placement)

            worker, at = session.worker, (request.next_step, request.lineage)

            async def carry_out() -> None:
                async with session.changing(request.fence):
                    if placement == worker.placement:
                        return  # it is in force already
                    if request.prepare:
                        await worker.prepare(judged, *at)
                        return
                    worker.check_follows(placement, *at)
                    # Messages until all links have ended may begin another step, so the worker checks it again.
                    await session.end_links()
                    await worker.commit(judged, *at)

            await _to_the_end(carry_out())
            if request.prepare:
                return pb.CommitPlacementResponse()
            _log.info("placement committed", version=placement.version, step=session.worker.next_step)
            return pb.CommitPlacementResponse(tickets=session.issue_tickets())

    async def dial_peers(self, request: pb.DialPeersRequest, _context: Context) -> pb.DialPeersResponse:
        """Dial other trainers of the session."""
        with self._sessions.using(request.session_id) as session:
            async with session.changing(request.fence):
                await session.dial(request.peers, request.evaluation, self._dialer)
        return pb.DialPeersResponse()

    async def leave_group(self, request: pb.LeaveGroupRequest, _context: Context) -> pb.LeaveGroupResponse:
        """Let a member of a group go after a step."""
        if not is_step(request.last_step):
            raise ProtocolError(f"no member of a group can do step {request.last_step}; a step is {MOST_STEPS} at most")
        with self._sessions.using(request.session_id) as session:
            async with session.changing(request.fence):
                leaving = self._groups.leave(session, request.last_step, ends_group=request.ends_group)
                await _to_the_end(leaving)
        return pb.LeaveGroupResponse()

    async def join_group(self, request: pb.JoinGroupRequest, _context: Context) -> pb.JoinGroupResponse:
        """Let a member of a group join at a step, and wait until the group is there."""
        if not is_step(request.first_step) or not is_term(request.life):
            raise ProtocolError(f"nobody can join a group at step {request.first_step} of life {request.life}")
        with self._sessions.using(request.session_id) as session:
            async with session.changing(request.fence):
                await _to_the_end(self._groups.join(session, request.life, request.first_step))
            await self._groups.reach(session, request.life, request.first_step)
        return pb.JoinGroupResponse()

    async def check_peers(self, request: pb.CheckPeersRequest, _context: Context) -> pb.CheckPeersResponse:
        """Check whether other trainers could be dialled."""
        if (count := len(request.addresses)) > MOST_WORKERS:
            raise ProtocolError(f"{count} addresses are named; at most {MOST_WORKERS} are looked at")
        if is_session_id(request.run_id):
            bind_run(request.run_id)
        checks = await gathered(*(self._dialer.look(address) for address in request.addresses))
        return pb.CheckPeersResponse(checks=checks)

    async def measure_link(self, request: pb.MeasureLinkRequest, _context: Context) -> pb.MeasureLinkResponse:
        """Measure the link to another trainer of the session."""
        with self._sessions.using(request.session_id) as session, session.memory.copying([]):
            session.check_joined(request.fence)
            self._dialer.check(request.peer)
            try:
                async with self._dialer.probe(request.peer.address, request.peer.ticket) as calls:
                    found = await measure_link(calls)
                if found.uplink is None:
                    raise NotMeasuredError("it takes no bytes")
            except NotMeasuredError as why:
                raise StatusError(
                    grpc.StatusCode.UNAVAILABLE,
                    f"worker {session.worker.name!r} cannot measure the link to {request.peer.worker[:40]!r}: {why}",
                ) from why
        return pb.MeasureLinkResponse(
            uplink=found.uplink, downlink=found.downlink, round_trip_seconds=found.round_trip_seconds or 0.0
        )

    async def checkpoint_worker(self, request: pb.CheckpointWorkerRequest, context: Context) -> None:
        """Take a checkpoint: say when the state is copied, and then whether it was written."""
        ended: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        async def tell(written: bool) -> None:
            if not ended.done():  # its agent may have gone
                ended.set_result(written)

        with self._sessions.using(request.session_id) as session:
            async with session.changing(request.fence):
                await self._checkpointer.take(session, request, tell)
            await context.write(pb.CheckpointWorkerResponse())
            await context.write(pb.CheckpointWorkerResponse(written=await ended))

    async def join_evaluation(self, request: pb.JoinEvaluationRequest, context: Context) -> None:
        """Take part in an evaluation until the caller ends this call."""
        if not is_step(request.batches):
            raise ProtocolError(f"no evaluation has {request.batches} batches; it has {MOST_STEPS} at most")
        with self._sessions.using(request.session_id) as session:
            async with session.changing(request.fence):
                evaluation = await session.evaluations.begin(request.evaluation, request.batches)
            try:
                tickets = session.issue_tickets(evaluation.number)
                await context.write(pb.JoinEvaluationResponse(tickets=tickets))
                await evaluation.wait_until_ended()
            finally:
                await session.evaluations.end(evaluation)
            raise StatusError(
                grpc.StatusCode.ABORTED,
                f"evaluation {evaluation.number} of session {session.id} was ended by another call",
            )

    async def measure_stage(self, request: pb.MeasureStageRequest, _context: Context) -> pb.MeasureStageResponse:
        """Time some consecutive blocks."""
        with self._sessions.using(request.session_id) as session, ExitStack() as copied:
            check_run(request.first, request.stop, session.judge.chain)
            copied.enter_context(session.memory.copying(range(request.first, request.stop)))
            lane = self._threads.compute_lane(session.id)
            samples = request.samples if request.HasField("samples") else None
            step = await lane.run(_measured_step, session, request.first, request.stop, request.repeats, samples)
            # One call each, so that others get their turn in between, and none is made for a caller that has gone.
            steps = [await lane.run(step) for _ in range(request.repeats + 1)][1:]
        return pb.MeasureStageResponse(steps=[pb.StepSeconds(**seconds._asdict()) for seconds in steps])

    async def get_session(self, request: pb.GetSessionRequest, _context: Context) -> pb.GetSessionResponse:
        """Report the progress of a session."""
        with self._sessions.using(request.session_id) as session:
            awaited = session.worker.executor.awaited
            if GROUP in awaited and self._threads.is_held_up:
                awaited = frozenset()  # the group's work is done on this thread, too
            return pb.GetSessionResponse(
                group=await self._groups.position(session),
                next_step=session.worker.next_step,
                attached=session.attachment.attached,
                received_bytes=session.figures.received_bytes,
                sent_bytes=session.figures.sent_bytes,
                max_staleness=session.memory.max_staleness,
                awaited=sorted(awaited),
                progress=session.worker.executor.progress,
            )


def _measured_step(
    session: Session, first: int, stop: int, repeats: int, samples: int | None = None
) -> Callable[[], StepSeconds]:
    """Return a function that runs one step of blocks [first, stop) as a session does, and returns the step's seconds.

    The function undoes its changes, and raises StatusError once the session trains. repeats: number of its calls. samples: of
    a step; those of a whole batch, where it is left out. Raises ModelError for blocks out of range, ProtocolError for too many
    repeats or samples, and StatusError.
    """
    session.check_untrained()
    held, placement = session.blocks.held, session.worker.placement
    chain, device = held.chain, held.device
    check_run(first, stop, chain)  # Random features go in and come out, so any range is possible.
    if not 1 <= repeats <= _MAX_REPEATS:
        raise ProtocolError(f"{repeats} repeats were asked for; 1 to {_MAX_REPEATS} can be")
    if samples is not None and not 1 <= samples <= placement.batch_size:
        raise ProtocolError(f"steps of {samples} samples were asked for; 1 to {placement.batch_size} can be")
    policy = policy_of_stage(session.request.backward, placement.staleness, ends_model=stop == placement.blocks)
    stage = lone_stage(chain, first, stop, held.recipe, device)
    wanted = first > 0 and chain.gradients_return(first)
    step = stage_step(stage, chain.features[first], policy, input_gradient=wanted, samples=samples)
    elsewhere = [block.module for block in stage.blocks if block.index not in held.indices]

    def measured() -> StepSeconds:
        session.check_untrained()  # The agent may have joined since the previous step.
        with translate_failures("measuring blocks", device), untouched(stage.blocks):
            for module in elsewhere:
                module.to(device)
            try:
                return step()
            finally:
                for module in elsewhere:
                    module.to("cpu")

    return measured


async def _to_the_end(work: Coroutine[object, object, T]) -> T:
    """Do some work to its end, even where its caller goes away in the middle of it."""
    doing = asyncio.create_task(work)
    try:
        return await asyncio.shield(doing)
    except asyncio.CancelledError:
        await asyncio.wait({doing})
        raise
