"""`EdgeControlService`: each call is passed to the part that does the work, and answered in the contract's words."""

import asyncio
import functools
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from typing import TypeVar

import grpc
import structlog

from edge_agent.control.control_state import ControlState
from edge_agent.control.pins import Pins, check_stands
from edge_agent.control.status import edge_status, history_answer, pins_message, session_statuses
from edge_agent.control.trainers import trainer_listings
from edge_agent.experiment.experiment import trainers_with_blocks
from edge_agent.planner_names import FIXED, GREEDY, RUN_PLANNER_NAMES
from edge_agent.sessions.stored_session import stored_sessions
from edge_agent.training.choosers import Chooser
from edge_agent.training.deployer import Deployer
from edge_agent.training.events import Activity, ActivityChanged
from edge_agent.training.training_run import TrainingRun
from shared.control.answers import set_level, watch
from shared.control.serving import Health, control_handlers, serving_operators
from shared.errors import ConfigError, DataError, IsthmusError, PlanError, StoppedError
from shared.events import Events
from shared.events.calls import TrainersAwaited
from shared.placement import Placement
from shared.transport.rpc.status import StatusError
from shared.wire.isthmus.v1 import control_pb2 as pb

_log = structlog.get_logger(__name__)
SERVICE = pb.DESCRIPTOR.services_by_name["EdgeControlService"]
TRAINING = "training"
"""Name of the health service for the doing of steps."""
Q = TypeVar("Q")
R = TypeVar("R")


def _until_the_end(
    answer: "Callable[[EdgeControl, Q], Awaitable[R]]",
) -> "Callable[[EdgeControl, Q], Awaitable[R]]":
    """A call that waits for the run, and is refused with a sentence once that has ended for good."""

    @functools.wraps(answer)
    async def call(control: "EdgeControl", request: Q) -> R:
        answering = asyncio.ensure_future(answer(control, request))
        ending = asyncio.create_task(control.ended())
        try:
            await asyncio.wait({answering, ending}, return_when=asyncio.FIRST_COMPLETED)
            if answering.done():
                return answering.result()
            raise StatusError(grpc.StatusCode.FAILED_PRECONDITION, "the run ended before this was done")
        finally:
            answering.cancel()
            ending.cancel()
            await asyncio.gather(answering, ending, return_exceptions=True)

    return call


class EdgeControl:
    """The answers. protos/isthmus/v1/control.proto says what each promises and refuses."""

    def __init__(self, state: ControlState, health: Health) -> None:
        self._state = state
        self._health = health

    async def ended(self) -> None:
        """Wait until nothing more comes of the run."""
        await self._state.ended.wait()

    async def get_status(
        self, _request: pb.EdgeControlServiceGetStatusRequest
    ) -> pb.EdgeControlServiceGetStatusResponse:
        """Return the current status of the run."""
        return pb.EdgeControlServiceGetStatusResponse(status=edge_status(self._state))

    async def watch(
        self, request: pb.EdgeControlServiceWatchRequest
    ) -> AsyncIterator[pb.EdgeControlServiceWatchResponse]:
        """The same again and again."""
        interval = request.interval if request.HasField("interval") else None
        async with aclosing(watch(interval, lambda: edge_status(self._state), self._state.ended)) as statuses:
            async for status in statuses:
                yield pb.EdgeControlServiceWatchResponse(status=status)

    async def get_history(self, request: pb.GetHistoryRequest) -> pb.GetHistoryResponse:
        """Return the history of the run so far, or what of it follows a row."""
        return history_answer(self._state.statistics.history, request.after)

    @_until_the_end
    async def pause(self, _request: pb.PauseRequest) -> pb.PauseResponse:
        """Let training stand still."""
        await self._state.pause.pause()
        await self._tell_health()
        return pb.PauseResponse(step=self._state.statistics.steps)

    async def resume(self, _request: pb.ResumeRequest) -> pb.ResumeResponse:
        """Let it go on."""
        self._state.pause.release()
        return pb.ResumeResponse(step=self._state.statistics.steps)

    async def drain(self, request: pb.EdgeControlServiceDrainRequest) -> pb.EdgeControlServiceDrainResponse:
        """End the run."""
        if request.leave:
            self._check_may_leave()
        if request.finish:
            self._check_may_finish(leave=request.leave)
        _log.info("told to drain", leave=request.leave, finish=request.finish)
        if request.finish:
            self._state.pause.boundary.request_end()
        else:
            self._state.shutdown.drain(leave=request.leave)
        await self._tell_health()
        return pb.EdgeControlServiceDrainResponse()

    @_until_the_end
    async def pin(self, request: pb.PinRequest) -> pb.PinResponse:
        """Hold a part of the deployment."""
        wanted = Pins(
            (request.cut,) if request.HasField("cut") else tuple(request.cuts) or None,
            request.bits if request.HasField("bits") else None,
            request.staleness if request.HasField("staleness") else None,
            request.trainer if request.HasField("trainer") else None,
        )
        run = self._open_run()
        self._state.pinning.check(wanted)
        if wanted.staleness is not None and wanted.staleness > (limit := await run.session.max_staleness()):
            raise StatusError(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"staleness is {wanted.staleness}; the trainer's limit is {limit} (server.max_staleness)",
            )
        before = self._state.pinning.now
        await self._state.pinning.pin(wanted)
        try:
            await self._in_force(run, wanted)
        except IsthmusError:
            await self._state.pinning.put_back(before, wanted)
            raise
        return pb.PinResponse(pinned=pins_message(self._state.pinning.now))

    async def _in_force(self, run: TrainingRun, wanted: Pins) -> None:
        """Wait until pins are in force. A later request that they bound has them, too.

        Raises StoppedError or RefusedError if that does not happen.
        """
        while True:
            try:
                await run.deployer.in_force()
            except StoppedError:
                is_bound = wanted.trainer is None and self._state.pinning.stand(wanted)
                if not is_bound or run.deployer.placement is run.session.placement:
                    raise
            else:
                return

    @_until_the_end
    async def release(self, request: pb.ReleaseRequest) -> pb.ReleaseResponse:
        """Hold it no longer."""
        names = [field.name for field, _ in request.ListFields()] or ["cut", "bits", "staleness", "trainer"]
        await self._state.pinning.release(["cuts" if name == "cut" else name for name in names])
        return pb.ReleaseResponse(pinned=pins_message(self._state.pinning.now))

    @_until_the_end
    async def place(self, request: pb.PlaceRequest) -> pb.PlaceResponse:
        """Have the workers run something else, and wait until they do."""
        run = self._open_run()
        if self._state.decisions is not None:
            raise StatusError(
                grpc.StatusCode.FAILED_PRECONDITION,
                "a decision engine runs (engine.profile), which chooses the placement; pin what it may not change",
            )
        try:
            document = json.loads(request.document_json)
        except (ValueError, RecursionError) as cause:
            raise ConfigError(f"the placement is not JSON: {cause}") from cause
        try:
            wanted = await judged(run.deployer, document)
        except DataError as private:
            raise StatusError(grpc.StatusCode.INVALID_ARGUMENT, str(private)) from private
        check_stands(run.deployer.want(wanted, Chooser.OPERATOR))
        self._state.pinning.end()
        return pb.PlaceResponse(version=(await run.deployer.in_force()).version)

    @_until_the_end
    async def handover(self, request: pb.HandoverRequest) -> pb.HandoverResponse:
        """Have a trainer get all that another one has, and wait until it does."""
        run = self._open_run()
        if (pinned := self._state.pinning.now.trainer) is not None:
            raise StatusError(grpc.StatusCode.FAILED_PRECONDITION, f"trainer {pinned!r} is pinned; release it before")
        before = None
        while before is not run.deployer.placement:  # another request may come meanwhile
            before = run.deployer.placement
            try:
                wanted = await asyncio.to_thread(
                    run.deployer.experiment.handed_over, before, request.trainer, request.from_trainer
                )
            except DataError as private:
                raise StatusError(grpc.StatusCode.INVALID_ARGUMENT, str(private)) from private
        check_stands(run.deployer.want(wanted, Chooser.OPERATOR))
        (giver,) = set(trainers_with_blocks(before)) - set(trainers_with_blocks(wanted))
        return pb.HandoverResponse(version=(await run.deployer.in_force()).version, from_trainer=giver)

    @_until_the_end
    async def list_trainers(self, _request: pb.ListTrainersRequest) -> pb.ListTrainersResponse:
        """Tell what each configured trainer is to the session, and whether it answers."""
        return pb.ListTrainersResponse(trainers=await trainer_listings(self._open_run(), self._state.ranking))

    @_until_the_end
    async def set_planner(self, request: pb.SetPlannerRequest) -> pb.SetPlannerResponse:
        """Have the engine choose otherwise."""
        if request.planner not in RUN_PLANNER_NAMES:
            raise StatusError(
                grpc.StatusCode.INVALID_ARGUMENT,
                f'the planner is "{request.planner}"; a run has {GREEDY}, which follows the link, or {FIXED}, which keeps the '
                "deployment that is in force",
            )
        if self._state.decisions is None:
            raise StatusError(
                grpc.StatusCode.FAILED_PRECONDITION,
                "no decision engine runs, because engine.profile is not set, or this is a member of a group; the deployment "
                "changes by pins only",
            )
        try:
            await self._state.decisions.use(request.planner)
        except PlanError as unable:
            raise StatusError(grpc.StatusCode.FAILED_PRECONDITION, str(unable)) from unable
        return pb.SetPlannerResponse(planner=request.planner)

    @_until_the_end
    async def take_checkpoint(self, _request: pb.TakeCheckpointRequest) -> pb.TakeCheckpointResponse:
        """Take a checkpoint at every worker."""
        checkpointer = self._open_run().checkpointer
        if not checkpointer.keeps:
            why = "because checkpoints.location is none"
            if self._state.config.member is not None:
                why = "because its group's trainer has them (checkpoint_steps in [[groups]])"
            raise StatusError(grpc.StatusCode.FAILED_PRECONDITION, f"this run keeps no checkpoints, {why}")
        return pb.TakeCheckpointResponse(step=(await checkpointer.order()).step)

    async def list_sessions(
        self, _request: pb.EdgeControlServiceListSessionsRequest
    ) -> pb.EdgeControlServiceListSessionsResponse:
        """The unfinished sessions of this device."""
        sessions = await asyncio.to_thread(lambda: session_statuses(stored_sessions(self._state.folder)))
        return pb.EdgeControlServiceListSessionsResponse(sessions=sessions)

    async def set_log_level(
        self, request: pb.EdgeControlServiceSetLogLevelRequest
    ) -> pb.EdgeControlServiceSetLogLevelResponse:
        """Log more or less."""
        return pb.EdgeControlServiceSetLogLevelResponse(previous=set_level(request.level))

    async def keep_health(self, events: Events) -> None:
        """Say at every change of the activity whether steps are done."""
        has_changed = asyncio.Event()
        events.subscribe(ActivityChanged, lambda _event: has_changed.set())
        events.subscribe(TrainersAwaited, lambda _event: has_changed.set())
        while True:
            has_changed.clear()
            await self._tell_health()
            await has_changed.wait()

    async def _tell_health(self) -> None:
        await self._health.say(self._state.activity is Activity.TRAINING, TRAINING)

    def _check_may_leave(self) -> None:
        """Refuse to leave a group where this device is in none, or has not come to it yet. Raises StatusError."""
        if self._state.config.member is None:
            raise StatusError(
                grpc.StatusCode.FAILED_PRECONDITION,
                "this device is in no group (group.name), so that there is nothing to leave; drain without --leave",
            )
        self._open_run()

    def _check_may_finish(self, *, leave: bool) -> None:
        """Refuse to finish a group that this device cannot end, has not come to yet, or is to leave. Raises StatusError."""
        if leave:
            raise StatusError(
                grpc.StatusCode.FAILED_PRECONDITION, "a group is left or finished; drain with --leave or --finish alone"
            )
        if self._state.config.member is not None and self._open_run().session.experiment.leaves_out_late:
            raise StatusError(
                grpc.StatusCode.FAILED_PRECONDITION,
                "the group of this device goes on without late members (leave_out_seconds), so that no step is the last one of "
                "all; drain without --finish, or with --leave",
            )

    def _open_run(self) -> TrainingRun:
        run = self._state.run
        if run is None or self._state.ended.is_set():
            raise StatusError(grpc.StatusCode.FAILED_PRECONDITION, "no session is open now; try again when one is")
        return run


async def judged(deployer: Deployer, document: object) -> Placement:
    """The placement that a document says, judged beside the event loop. Raises ConfigError or DataError."""
    before = None
    while before is not deployer.placement:  # The document may leave unchanged what another request changes.
        before = deployer.placement
        wanted = await asyncio.to_thread(deployer.experiment.placed, document, before)
    return wanted


@asynccontextmanager
async def serving_control(of: ControlState, events: Events) -> AsyncIterator[EdgeControl]:
    """Answer control calls while the block runs, as `control.listen` and `web.listen` say; yields what answers them.

    Raises ListenError and ConfigError.
    """
    health = Health()
    control = EdgeControl(of, health)
    answering = control_handlers(SERVICE, control, "the agent", lambda _code: None)
    names = ("", SERVICE.full_name)
    await health.say(True, *names)
    config = of.config
    async with serving_operators(config.control, config.web, "edge-agent", answering, SERVICE, health):
        keeping = asyncio.create_task(control.keep_health(events))
        try:
            yield control
        finally:
            of.end()
            keeping.cancel()
            with suppress(asyncio.CancelledError):
                await keeping
            await health.say(False, *names, TRAINING)
