"""One training run from the edge's side: open a session, train epoch by epoch, evaluate, bring the weights home.

`train` is the call for a notebook; `edge-agent run` makes the same one.
"""

import asyncio
import logging
import multiprocessing
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack, suppress

import structlog
from prometheus_client import CollectorRegistry
from structlog.contextvars import unbind_contextvars

from edge_agent.adaptation.beginning import begin_run
from edge_agent.adaptation.rescheduling import make_rescheduling
from edge_agent.attempts import Attempts, Newest, Preparation
from edge_agent.callbacks.run_callbacks import RunCallbacks
from edge_agent.config import EdgeConfig
from edge_agent.control.control_state import ControlState
from edge_agent.control.pins import Pinning
from edge_agent.control.service import serving_control
from edge_agent.experiment.agent_threads import AgentThreads
from edge_agent.experiment.experiment import Experiment
from edge_agent.experiment.unkept import warn_of_unkept
from edge_agent.observability.metrics import EdgeMetrics
from edge_agent.observability.observer import RunObserver
from edge_agent.observability.timeline import Timeline
from edge_agent.observability.timeline_recorder import TimelineRecorder
from edge_agent.profiling.fitting import check_kills, warn_of_kept_features
from edge_agent.replaying.run_record import RunRecorder
from edge_agent.sessions.how_to_go_on import add_how_to_go_on, add_run, going_on
from edge_agent.sessions.resuming import Resume, prepare
from edge_agent.sessions.room import check_room
from edge_agent.sessions.stored_session import sessions_folder
from edge_agent.training.events import HandedOver, Prepared, Progressed, RolledBack
from edge_agent.training.kept_result import deliver, kept_result
from edge_agent.training.recovery import placement_to_go_on_with
from edge_agent.training.result import TrainingResult
from edge_agent.training.results_folders import results_folders
from edge_agent.training.shutdown import Shutdown
from edge_agent.training.statistics import Statistics
from edge_agent.training.step_boundary import Pause, StepBoundary
from shared.client.credentials import trainer_access
from shared.client.retry import Retry
from shared.client.trainer import TrainerClient
from shared.errors import IsthmusError, UnreachableError
from shared.events import Events
from shared.placement import held_blocks
from shared.telemetry.logs import bind_run, configure_logs
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

    Where output.directory is set, the results are there too. [log] holds in a program that has not set up its logs.
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
    if not (structlog.is_configured() or logging.getLogger().handlers):  # a program that logs has its own way
        configure_logs(config.log.level, config.log.format)
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


async def _prepare(config: EdgeConfig, resume: Resume | None, events: Events) -> Preparation:
    prepare_process(config.compute.threads)
    callbacks = await asyncio.to_thread(RunCallbacks.made, config.training)
    callbacks.subscribe(events)
    folder = sessions_folder(config)
    experiment, stored = await asyncio.to_thread(prepare, Experiment, config, folder, resume)
    if stored is not None:
        experiment.run_id = stored.record.session_id
    bind_run(experiment.run_id)
    if stored is None and (first := experiment.first_weights) is not None:
        _log.info("the weights of a file are loaded", file=str(first.path), **first.described())
    if experiment.recipe.never_falls:
        _log.warning(
            'the learning rate never falls: the run has one epoch, and training.schedule goes by epochs; set every = "step"',
            schedule=experiment.recipe.schedule.name,
        )
    events.emit(Prepared(experiment.run_id, config))
    upgraded = Retry(0.0, events.emit, config.upgrade.wait_seconds)
    profile = await begin_run(experiment, upgraded, is_new=stored is None)
    return Preparation(config, experiment, profile, experiment.placement, folder, stored, callbacks)


async def _train_or_deliver(
    prepared: Preparation, events: Events, write_result: Callable[[TrainingResult], object], shutdown: Shutdown
) -> TrainingResult:
    """Train, or deliver an earlier training's result. The sentence of a failure names the command that continues."""
    experiment, stored = prepared.experiment, prepared.stored
    newest = Newest(stored)
    try:
        if stored is not None and (kept := await asyncio.to_thread(kept_result, experiment, stored)) is not None:
            shutdown.cancel_no_more()
            done = Statistics(kept.summary.steps, stored.record.session_id, steps=kept.summary.steps)
            events.emit(Progressed(done))
            await deliver(kept, experiment, stored, write_result)
            return kept
        prepared = prepared._replace(killed=await asyncio.to_thread(check_kills, experiment, stored))
        await asyncio.to_thread(check_room, experiment, prepared.folder, stored)
        await asyncio.to_thread(warn_of_kept_features, experiment)
        await asyncio.to_thread(warn_of_unkept, experiment)
        return await _train(prepared, events, write_result, shutdown, newest)
    except IsthmusError as failure:
        add_how_to_go_on(
            failure, newest.stored, shutdown.resume_command, is_member=experiment.config.member is not None
        )
        add_run(failure, newest.stored)
        raise


async def _train(
    prepared: Preparation,
    events: Events,
    write_result: Callable[[TrainingResult], object],
    shutdown: Shutdown,
    newest: Newest,
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
    RunObserver(statistics, metrics, events, directory)
    if timeline is not None:
        TimelineRecorder(timeline, events)
    if config.output.record and directory is not None:
        RunRecorder(directory, events)
    events.subscribe(RolledBack, lambda _event: pinning.enforce())
    control_state = ControlState(config, statistics, shutdown, pause, pinning, prepared.folder)
    with serving_metrics(config.metrics.listen, metrics.registry), AgentThreads.started() as threads:
        async with (
            serving_control(control_state, events) as control,
            prepared.callbacks.running(control),
            AsyncExitStack() as stack,
        ):
            clients = {
                name: TrainerClient(trainer, config.link, events.emit, access[name])
                for name, trainer in trainers.items()
            }
            await _connect(prepared, clients, stack)
            events.subscribe(HandedOver, control_state.note_handover)
            again = make_rescheduling(config, events, statistics, metrics.sharing)
            attempts = Attempts(control_state, events, metrics, threads, clients, write_result, again)
            result = await attempts.train(prepared, newest)
    if timeline is not None and config.output.trace is not None:
        await asyncio.to_thread(timeline.write, config.output.trace)
    return result


async def _connect(prepared: Preparation, clients: Mapping[str, TrainerClient], stack: AsyncExitStack) -> None:
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
