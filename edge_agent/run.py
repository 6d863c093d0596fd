"""One training run from the edge's side: open a session, train epoch by epoch, evaluate, bring the weights home.

`train` is the call for a notebook; `edge-agent run` makes the same one.
"""

import asyncio
import multiprocessing
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack, suppress
from functools import partial
from typing import NamedTuple

import structlog
from prometheus_client import CollectorRegistry
from structlog.contextvars import unbind_contextvars

from edge_agent.adaptation.candidates.choice import TrainerChoice, make_choice
from edge_agent.adaptation.candidates.first_trainer import begin_with_fastest, first_trainer
from edge_agent.adaptation.decisions import DecisionLoop, make_decision_loop
from edge_agent.adaptation.engine_inputs import load_run_profile
from edge_agent.adaptation.member_start import begin_as_planned
from edge_agent.adaptation.planned_start import planned_start
from edge_agent.adaptation.rescheduling import Rescheduling, make_rescheduling
from edge_agent.config import EdgeConfig
from edge_agent.control.control_state import ControlState
from edge_agent.control.pins import Pinning
from edge_agent.control.service import serving_control
from edge_agent.experiment.agent_threads import AgentThreads
from edge_agent.experiment.building import Experiment
from edge_agent.experiment.candidates import has_candidates, policy_of
from edge_agent.experiment.small_share import warn_of_small_share
from edge_agent.experiment.unkept import warn_of_unkept
from edge_agent.observability.metrics import EdgeMetrics
from edge_agent.observability.observer import RunObserver
from edge_agent.observability.timeline import Timeline
from edge_agent.observability.timeline_recorder import TimelineRecorder
from edge_agent.planner_names import EDGEMOVE, FIXED
from edge_agent.planning import Profile
from edge_agent.profiling.timers import timer_meanwhile
from edge_agent.replaying.run_record import RunRecorder
from edge_agent.sessions.opening import open_when_there, resume_session
from edge_agent.sessions.outlook import add_outlook, add_run, going_on
from edge_agent.sessions.resuming import Resume, prepare
from edge_agent.sessions.room import check_room
from edge_agent.sessions.stored_session import StoredSession, sessions_folder
from edge_agent.training.events import BeganAgain, HandedOver, Prepared, Progressed, RolledBack, SessionOpened
from edge_agent.training.kept_result import deliver, kept_result
from edge_agent.training.pause import Pause, StepBoundary
from edge_agent.training.recovery import placement_to_go_on_with
from edge_agent.training.result import TrainingResult
from edge_agent.training.results_folders import results_folders
from edge_agent.training.shutdown import Shutdown
from edge_agent.training.statistics import Statistics
from edge_agent.training.training_loop import TrainingLoop
from edge_agent.training.training_run import TrainingRun
from shared.checkpoint import LocalFiles
from shared.client.credentials import trainer_access
from shared.client.retry import Retry
from shared.client.trainer import TrainerClient
from shared.errors import ClosedError, GoneError, IsthmusError, ProtocolError, UnreachableError
from shared.events import Emit, Events
from shared.placement import AGENT, Placement, held_blocks
from shared.telemetry.logs import bind_run
from shared.telemetry.metrics import serving_metrics
from shared.training.device import prepare_process

_log = structlog.get_logger(__name__)


def _ignore(_given: object) -> None:
    pass


def result_writer(config: EdgeConfig) -> Callable[[TrainingResult], object]:
    """Return what leaves a result in output.directory; nothing, where that is not set."""

    def write(result: TrainingResult) -> None:
        if config.output.directory is not None:
            result.write(config.output.directory)

    return write


def train(config: EdgeConfig, on_progress: Callable[[Statistics], object] = _ignore) -> TrainingResult:
    """Train as `config` says and return the figures and the trained module. Blocks until it is done.

    Where output.directory is set, the results are there too.
    Works in a notebook, whose own event loop is left alone. on_progress: called after every step, on another thread, with the
    figures of the run so far: `steps` of `total_steps`, `loss` of the last step, `accuracy` of the last evaluation (None before
    the first), `step_time.recent` in seconds, and the others of `Statistics`. It is the same object each time.
    Raises IsthmusError (`shared.errors`) for everything that a user, the data or the trainer can get wrong.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):  # as multiprocessing itself asks
        sys.exit(
            "edge-agent: a process of data.workers came to train() as it imported this script; put the call of train() under "
            'if __name__ == "__main__":'
        )
    prepare_process(config.compute.threads)  # here already: the thread that runs it would have a heap of its own
    stoppers: list[Callable[[], object]] = []

    def show(event: Progressed) -> None:
        if event.statistics.loss is not None:
            on_progress(event.statistics)

    def run() -> TrainingResult:
        with asyncio.Runner() as runner:
            loop = runner.get_loop()
            training = run_training(config, lambda events: events.subscribe(Progressed, show), result_writer(config))
            task = loop.create_task(training)
            stoppers.append(lambda: loop.call_soon_threadsafe(task.cancel))
            return loop.run_until_complete(task)

    with results_folders(config.output), ThreadPoolExecutor(1, thread_name_prefix="edge-agent") as executor:
        running = executor.submit(run)
        try:
            return running.result()
        except KeyboardInterrupt:
            for shutdown in stoppers:  # an interrupted notebook cell must not leave the run behind
                shutdown()
            raise


async def run_training(
    config: EdgeConfig,
    subscribe: Callable[[Events], object] = _ignore,
    write_result: Callable[[TrainingResult], object] = _ignore,
    *,
    resume: Resume | None = None,
    shutdown: Shutdown | None = None,
) -> TrainingResult:
    """`train` for callers that have an event loop of their own; nothing heavy runs on it.

    subscribe: subscribes to the events of the run. write_result: called with the result, on another thread; the session is
    resumable until it has returned. Raises StoppedError when `shutdown` asked for it.
    """
    shutdown, events = shutdown or Shutdown(), Events()
    subscribe(events)
    shutdown.cancel_on_request()
    fate = "nothing was trained"
    try:
        prepared = await _prepare(config, resume, events)
        if prepared.stored is not None:
            fate = f"session {prepared.stored.record.session_id} is as it was, and "
            fate += f"{going_on(prepared.stored, shutdown.resume_command)} goes on"
        with ExitStack() as stack:
            if prepared.stored is not None:
                stack.callback(prepared.stored.release)
            return await _train_or_deliver(prepared, events, write_result, shutdown)
    except asyncio.CancelledError:
        if shutdown.requested:
            raise shutdown.error(f"before the first step; {fate}") from None
        raise
    finally:
        shutdown.cancel_no_more()
        unbind_contextvars("run")


class _Prepared(NamedTuple):
    """The preparation of a run, before the trainer is asked."""

    config: EdgeConfig
    experiment: Experiment
    profile: Profile | None
    first: Placement
    """Placement that a new session begins with."""
    folder: LocalFiles | None
    """Folder in which this agent keeps its sessions."""
    stored: StoredSession | None
    """The session to go on with."""


async def _prepare(config: EdgeConfig, resume: Resume | None, events: Events) -> _Prepared:
    prepare_process(config.compute.threads)
    folder = sessions_folder(config)
    experiment, stored = await asyncio.to_thread(prepare, Experiment, config, folder, resume)
    if stored is not None:
        experiment.run_id = stored.record.session_id
    bind_run(experiment.run_id)
    events.emit(Prepared(experiment.run_id))
    policy = await asyncio.to_thread(policy_of, config)
    is_new = stored is None
    if is_new and policy == FIXED and has_candidates(config):
        experiment.begin_with(await first_trainer(config))
    if config.member is not None and config.engine.profile is not None:
        await begin_as_planned(experiment)
        return _Prepared(config, experiment, None, experiment.placement, folder, stored)
    profile = await asyncio.to_thread(load_run_profile, experiment)
    if is_new and policy != FIXED and profile is not None:
        await begin_with_fastest(experiment, profile)
        profile = profile.named(experiment.placement.workers)
    start = await planned_start(experiment, profile) if profile is not None and is_new and policy == FIXED else None
    if start is not None:
        experiment.begin_at(experiment.laid_out(start, experiment.placement))
    elif is_new:
        await asyncio.to_thread(warn_of_small_share, experiment)
    return _Prepared(config, experiment, profile, experiment.placement, folder, stored)


async def _train_or_deliver(
    prepared: _Prepared, events: Events, write_result: Callable[[TrainingResult], object], shutdown: Shutdown
) -> TrainingResult:
    """Train, or deliver an earlier training's result. The sentence of a failure names the command that continues."""
    experiment, stored = prepared.experiment, prepared.stored
    newest = _Newest(stored)
    try:
        if stored is not None and (kept := await asyncio.to_thread(kept_result, experiment, stored)) is not None:
            shutdown.cancel_no_more()
            done = Statistics(experiment.steps, stored.record.session_id, steps=experiment.steps)
            events.emit(Progressed(done))
            await deliver(kept, experiment, stored, write_result)
            return kept
        await asyncio.to_thread(check_room, experiment, prepared.folder, stored)
        await asyncio.to_thread(warn_of_unkept, experiment)
        return await _train(prepared, events, write_result, shutdown, newest)
    except IsthmusError as failure:
        add_outlook(failure, newest.stored, shutdown.resume_command, is_member=experiment.config.member is not None)
        add_run(failure, newest.stored)
        raise


class _Newest:
    """The session that a run has now, or had last."""

    def __init__(self, stored: StoredSession | None) -> None:
        self.stored = stored


async def _train(
    prepared: _Prepared,
    events: Events,
    write_result: Callable[[TrainingResult], object],
    shutdown: Shutdown,
    newest: _Newest,
) -> TrainingResult:
    """Serve metrics and control while the run trains; a stop that is asked for before a session is open cancels this."""
    config = prepared.config
    statistics = Statistics(prepared.experiment.steps)
    metrics = EdgeMetrics(CollectorRegistry(), statistics)
    trainers = {trainer.name: trainer for trainer in config.all_trainers}
    access = {name: trainer_access(trainer, config.tls) for name, trainer in trainers.items()}
    metrics.watch_token_file(lambda: any(each.token_broken() for each in access.values()))
    timeline = Timeline() if config.output.trace is not None else None
    pause, pinning = Pause(StepBoundary(), shutdown), Pinning(config.deployment)
    directory = config.output.directory
    RunObserver(statistics, metrics, events)
    if timeline is not None:
        TimelineRecorder(timeline, events)
    if config.output.record and directory is not None:
        RunRecorder(directory, events)
    events.subscribe(RolledBack, lambda _event: pinning.enforce())
    control_state = ControlState(config, statistics, shutdown, pause, pinning, prepared.folder)
    with serving_metrics(config.metrics.listen, metrics.registry), AgentThreads.started() as threads:
        async with serving_control(control_state, events), AsyncExitStack() as stack:
            clients = {
                name: TrainerClient(trainer, config.link, events.emit, access[name])
                for name, trainer in trainers.items()
            }
            await _connect(prepared, clients, stack)
            events.subscribe(HandedOver, control_state.note_handover)
            again = make_rescheduling(config, events, statistics, metrics.sharing)
            runs = _Runs(control_state, events.emit, metrics, threads, clients, write_result, again)
            result = await runs.train(prepared, newest)
    if timeline is not None and config.output.trace is not None:
        await asyncio.to_thread(timeline.write, config.output.trace)
    return result


async def _connect(prepared: _Prepared, clients: Mapping[str, TrainerClient], stack: AsyncExitStack) -> None:
    """Wait until those trainers answer that have blocks; nothing waits for long for another one. Raises IsthmusError."""
    experiment, stored = prepared.experiment, prepared.stored
    placement, members = experiment.placement, set(experiment.trainers)
    if stored is not None:
        placement = await asyncio.to_thread(placement_to_go_on_with, stored, experiment)
        members = stored.record.trainer_sessions.keys() - set(stored.record.left_out)
    for name, client in clients.items():
        if name in members and held_blocks(placement, name):
            await stack.enter_async_context(client)
            continue
        stack.push_async_exit(client)
        if name in members:
            with suppress(UnreachableError):
                await client.wait_until_connected()


class _Choosing(NamedTuple):
    """The choosers of one run beside its operators."""

    decisions: DecisionLoop | None
    choice: TrainerChoice | None


class _Runs:
    """The runs of one agent: one, and another from the start where nothing of it was on both sides when it was lost."""

    def __init__(
        self,
        control_state: ControlState,
        emit: Emit,
        metrics: EdgeMetrics,
        threads: AgentThreads,
        clients: Mapping[str, TrainerClient],
        write_result: Callable[[TrainingResult], object],
        again: Rescheduling | None,
    ) -> None:
        """clients: of the trainers of the experiment, by name. again: makes a member's schedule again."""
        self._control_state = control_state
        self._emit = emit
        self._metrics = metrics
        self._threads = threads
        self._clients = clients
        self._write_result = write_result
        self._again = again

    async def train(self, prepared: _Prepared, newest: _Newest) -> TrainingResult:
        """Train in one session after the other, until one comes to its end. Raises IsthmusError."""
        experiment, stored, statistics = prepared.experiment, prepared.stored, self._control_state.statistics
        began_again = False
        while True:
            self._control_state.shutdown.cancel_on_request()
            choosing = await asyncio.to_thread(self._choosing, experiment, prepared.profile)
            run = await self._open(experiment, stored, prepared.folder, is_start=not began_again)
            newest.stored = run.session.stored
            statistics.total_steps = experiment.steps  # a group may do others
            try:
                return await self._train_in(run, experiment, choosing, resumed=stored is not None)
            except GoneError as gone:
                self._control_state.leave()
                if run.session.stored.shared is not None:
                    command = going_on(run.session.stored, self._control_state.shutdown.resume_command)
                    raise type(gone)(_gone(run.session.id, gone, command)) from gone
                if began_again and isinstance(gone.__cause__, ProtocolError):
                    raise gone.__cause__ from None  # the trainer fails at it, and would again
                is_member = experiment.config.member is not None  # it may wait for others through many losses
                if isinstance(gone, ClosedError) or (began_again and statistics.steps == 0 and not is_member):
                    raise
                # No checkpoint was on both sides yet, so both share the beginning.
                _log.warning("the run begins again", reason=str(gone))
                self._emit(BeganAgain())
                began_again, stored = True, None
                if run.session.state.step_log is not None:
                    run.session.state.step_log.rolled_back(0)
                experiment = await asyncio.to_thread(Experiment, prepared.config)
                experiment.run_id = run.session.id
                experiment.begin_at(prepared.first)

    def _choosing(self, experiment: Experiment, profile: Profile | None) -> _Choosing:
        """Make what chooses the layout and the trainer of a run. Raises PlanError."""
        statistics, pinning = self._control_state.statistics, self._control_state.pinning

        def is_held() -> bool:
            moves_cut = policy_of(experiment.config) == EDGEMOVE
            return pinning.now.trainer is not None or (moves_cut and pinning.now.cuts is not None)

        choice = make_choice(experiment, profile, statistics, self._metrics.candidates, is_held)
        profile_with = None if choice is None else choice.profile_with
        decisions = make_decision_loop(experiment, profile, statistics, self._metrics.engine, profile_with)
        return _Choosing(decisions, choice)

    async def _open(
        self, experiment: Experiment, stored: StoredSession | None, folder: LocalFiles | None, *, is_start: bool
    ) -> TrainingRun:
        """Open a session, or resume a stored one. is_start: True for the first of this process. Raises IsthmusError."""
        config, threads, clients = experiment.config, self._threads, self._clients
        limits = [trainer.give_up_seconds for trainer in config.all_trainers if trainer.give_up_seconds is not None]
        retry = Retry(min(limits, default=None), self._emit)
        step_log, disk = config.checkpoints.step_log, threads.disk
        pause, emit, statistics = self._control_state.pause, self._emit, self._control_state.statistics
        if stored is not None:
            session = await disk.run(resume_session, stored, clients, experiment, threads, retry, step_log)
            training = await TrainingLoop.made(session, pause, emit, statistics)
            return TrainingRun(session, training, pause, emit, statistics)
        patience = retry  # the others of a group wait for a member, as it waits for them, and a run waits in its middle
        if is_start and config.member is None:
            seconds = [trainer.connect_timeout_seconds for trainer in config.all_trainers]
            patience = Retry(min([max(seconds, default=0.0), *limits]), emit)  # alone, it waits for nobody
        kept = folder if config.member is None else None
        session = await open_when_there(clients, experiment, threads, retry, patience, kept, step_log)
        try:
            training = await TrainingLoop.made(session, pause, emit, statistics)
        except BaseException:
            await session.abandon()
            await disk.run(session.stored.remove)
            raise
        return TrainingRun(session, training, pause, emit, statistics)

    async def _train_in(
        self,
        run: TrainingRun,
        experiment: Experiment,
        choosing: _Choosing,
        *,
        resumed: bool,
    ) -> TrainingResult:
        control_state, decisions, choice = self._control_state, choosing.decisions, choosing.choice
        await control_state.begin(run, decisions, choice)
        self._emit(SessionOpened(run))
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._threads.reading.run, experiment.close)
            if decisions is not None:
                timers = partial(timer_meanwhile, run.session)
                await stack.enter_async_context(decisions.running(run.deployer, timers))
            if self._again is not None:
                program = run.session.state.plan.training.program(AGENT)
                await stack.enter_async_context(self._again.running(run.deployer, program))
            if choice is not None:
                await stack.enter_async_context(choice.running(run, decisions))
            return await run.run(self._write_result, resumed=resumed)


def _gone(session_id: str, gone: GoneError, command: str) -> str:
    return (
        f"{gone}; should it come back there, {command} goes on, and after `edge-agent forget {session_id}` it "
        "begins from the start"
    )
