"""One training run from the edge's side: open a session, train epoch by epoch, evaluate, bring the weights home.

`train` is the call for a notebook; `edge-agent run` makes the same one.
"""

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack
from functools import partial
from typing import NamedTuple

import structlog
from prometheus_client import CollectorRegistry

from edge_agent.adaptation.chain_decisions import ChainDecisions, load_run_chain, make_chain_decisions
from edge_agent.adaptation.decisions import DecisionLoop, make_decision_loop
from edge_agent.adaptation.engine_inputs import load_run_profile
from edge_agent.adaptation.planned_start import planned_start
from edge_agent.config import EdgeConfig
from edge_agent.control.controlled import Controlled
from edge_agent.control.pins import Pinning
from edge_agent.control.service import serving_control
from edge_agent.experiment.building import Experiment
from edge_agent.experiment.workers import Workers
from edge_agent.observability.metrics import EdgeMetrics, EngineMetrics
from edge_agent.observability.observer import RunObserver
from edge_agent.observability.timeline import Timeline
from edge_agent.profiling.timers import measure_meanwhile
from edge_agent.sessions.opening import open_session, resume_session
from edge_agent.sessions.resuming import Resume, prepare
from edge_agent.sessions.stored_session import StoredSession, sessions_folder
from edge_agent.training.open_run import Deploys
from edge_agent.training.pause import Pause
from edge_agent.training.result import TrainingResult
from edge_agent.training.shutdown import Shutdown
from edge_agent.training.statistics import Statistics
from edge_agent.training.step_boundary import StepBoundary
from edge_agent.training.training_run import TrainingRun
from shared.checkpoint import LocalFiles
from shared.client.credentials import trainer_access
from shared.client.retry import Retry
from shared.client.trainer import TrainerClient
from shared.errors import ClosedError, GoneError, ProtocolError
from shared.placement import Deployment
from shared.planning import Profile
from shared.planning.chain import MeasuredChain
from shared.telemetry.metrics import serving_metrics
from shared.training.device import prepare_process

_log = structlog.get_logger(__name__)


class TrainingListener:
    """Hears nothing; a caller of `run_training` overrides what it wants to hear, on the event loop but for `finished`."""

    def progressed(self, progress: Statistics) -> None:
        """A step is done, or something else has changed that a progress bar shows."""

    def session_opened(self, deployer: Deploys) -> None:
        """Training is about to begin, or to begin again; `deployer` can change the deployment while it goes on."""

    def engine_started(self, decisions: DecisionLoop) -> None:
        """The decision engine is about to change the deployment, but for what `decisions` is told to leave alone."""

    def finished(self, result: TrainingResult) -> None:
        """The run is over. Called on another thread; the session is resumable until this has returned."""


class _ProgressListener(TrainingListener):
    def __init__(self, on_progress: Callable[[Statistics], object]) -> None:
        self._on_progress = on_progress

    def progressed(self, progress: Statistics) -> None:
        self._on_progress(progress)


def train(config: EdgeConfig, on_progress: Callable[[Statistics], object] = lambda _progress: None) -> TrainingResult:
    """Train as `config` says and return the figures and the trained module. Blocks until it is done.

    Works in a notebook, whose own event loop is left alone. on_progress: called after every step, on another thread.
    Raises IsthmusError (`shared.errors`) for everything that a user, the data or the trainer can get wrong.
    """
    prepare_process(config.compute.threads)  # here already: the thread that runs it would have a heap of its own
    stoppers: list[Callable[[], object]] = []

    def run() -> TrainingResult:
        with asyncio.Runner() as runner:
            loop = runner.get_loop()
            task = loop.create_task(run_training(config, _ProgressListener(on_progress)))
            stoppers.append(lambda: loop.call_soon_threadsafe(task.cancel))
            return loop.run_until_complete(task)

    with ThreadPoolExecutor(1, thread_name_prefix="edge-agent") as executor:
        running = executor.submit(run)
        try:
            return running.result()
        except KeyboardInterrupt:
            for shutdown in stoppers:  # an interrupted notebook cell must not leave the run behind
                shutdown()
            raise


async def run_training(
    config: EdgeConfig,
    listener: TrainingListener | None = None,
    *,
    resume: Resume | None = None,
    shutdown: Shutdown | None = None,
) -> TrainingResult:
    """`train` for callers that have an event loop of their own; nothing heavy runs on it.

    Raises StoppedError when `shutdown` asked for it.
    """
    shutdown = shutdown or Shutdown()
    shutdown.cancel_on_request()
    fate = "nothing was trained"
    try:
        prepared = await _prepare(config, resume)
        if prepared.stored is not None:
            fate = f"session {prepared.stored.record.session_id} is as it was, and `{shutdown.resume_command}` goes on"
        with ExitStack() as stack:
            if prepared.stored is not None:
                stack.callback(prepared.stored.release)
            return await _train(prepared, listener or TrainingListener(), shutdown)
    except asyncio.CancelledError:
        if shutdown.requested:
            raise shutdown.error(f"before the first step; {fate}") from None
        raise
    finally:
        shutdown.cancel_no_more()


class _Prepared(NamedTuple):
    """What is known before the trainer is asked."""

    config: EdgeConfig
    experiment: Experiment
    profile: Profile | None
    chain: MeasuredChain | None
    start: Deployment | None
    """What a new session begins with, where that was planned."""
    folder: LocalFiles | None
    """Where this agent keeps its sessions."""
    stored: StoredSession | None
    """The session to go on with."""


async def _prepare(config: EdgeConfig, resume: Resume | None) -> _Prepared:
    prepare_process(config.compute.threads)
    folder = sessions_folder(config)
    experiment, stored = await asyncio.to_thread(prepare, Experiment, config, folder, resume)
    profile = await asyncio.to_thread(load_run_profile, experiment)
    chain = await asyncio.to_thread(load_run_chain, experiment)
    start = await planned_start(experiment, profile) if profile is not None and stored is None else None
    if start is not None:
        experiment.begin_with(start)
    return _Prepared(config, experiment, profile, chain, start, folder, stored)


async def _train(prepared: _Prepared, listener: TrainingListener, shutdown: Shutdown) -> TrainingResult:
    """Serve metrics and control while the run trains; a stop that is asked for before a session is open cancels this."""
    config = prepared.config
    statistics = Statistics(prepared.experiment.steps)
    metrics = EdgeMetrics(CollectorRegistry(), statistics)
    trainers = {
        trainer.name: trainer for trainer in config.all_trainers if trainer.name in prepared.experiment.trainers
    }
    access = {name: trainer_access(trainer, config.tls) for name, trainer in trainers.items()}
    metrics.watch_token_file(lambda: any(each.token_broken() for each in access.values()))
    timeline = Timeline() if config.output.trace is not None else None
    pause, pinning = Pause(StepBoundary(), shutdown), Pinning(config.deployment)
    observer = RunObserver(statistics, metrics, timeline, listener.progressed, pinning.enforce)
    controlled = Controlled(config, statistics, shutdown, pause, pinning, prepared.folder)
    with serving_metrics(config.metrics.listen, metrics.registry), Workers.started() as workers:
        async with serving_control(controlled, observer.activity_news), AsyncExitStack() as stack:
            clients = {
                name: TrainerClient(trainer, config.link, metrics.failed, access[name])
                for name, trainer in trainers.items()
            }
            left_out = () if prepared.stored is None else prepared.stored.record.left_out
            for name, client in clients.items():
                if name in left_out:  # nothing waits for it
                    stack.push_async_exit(client)
                else:
                    await stack.enter_async_context(client)
            runs = _Runs(controlled, observer, metrics.engine, workers, clients, listener)
            result = await runs.train(prepared)
    if timeline is not None and config.output.trace is not None:
        await asyncio.to_thread(timeline.write, config.output.trace)
    return result


class _Runs:
    """The runs of one agent: one, and another from the start where nothing of it was on both sides when it was lost."""

    def __init__(
        self,
        controlled: Controlled,
        observer: RunObserver,
        metrics: EngineMetrics,
        workers: Workers,
        clients: Mapping[str, TrainerClient],
        listener: TrainingListener,
    ) -> None:
        """clients: of the trainers of the experiment, by name."""
        self._controlled = controlled
        self._observer = observer
        self._metrics = metrics
        self._workers = workers
        self._clients = clients
        self._listener = listener

    async def train(self, prepared: _Prepared) -> TrainingResult:
        """Train in one session after the other, until one comes to its end. Raises IsthmusError."""
        experiment, stored, statistics = prepared.experiment, prepared.stored, self._controlled.statistics
        began_again = False
        while True:
            self._controlled.shutdown.cancel_on_request()
            decisions = await asyncio.to_thread(
                make_decision_loop, experiment, prepared.profile, statistics, self._metrics
            )
            chain_decisions = await asyncio.to_thread(
                make_chain_decisions, experiment, prepared.chain, statistics, self._metrics
            )
            run = await self._open(experiment, stored, prepared.folder)
            try:
                return await self._train_in(run, experiment, decisions, chain_decisions, resumed=stored is not None)
            except GoneError as gone:
                self._controlled.leave()
                if run.session.resumable:
                    raise type(gone)(_gone(run.session.id, gone)) from gone
                if began_again and isinstance(gone.__cause__, ProtocolError):
                    raise gone.__cause__ from None  # the trainer fails at it, and would again
                if isinstance(gone, ClosedError) or (began_again and statistics.steps == 0):
                    raise
                # Nothing was on both sides yet, so the beginning is what both share.
                _log.warning("the run begins again", reason=str(gone))
                self._observer.began_again()
                began_again, stored = True, None
                experiment = await asyncio.to_thread(Experiment, prepared.config)
                if prepared.start is not None:
                    experiment.begin_with(prepared.start)

    async def _open(
        self, experiment: Experiment, stored: StoredSession | None, folder: LocalFiles | None
    ) -> TrainingRun:
        config, workers, clients = experiment.config, self._workers, self._clients
        limits = [trainer.give_up_seconds for trainer in config.all_trainers if trainer.give_up_seconds is not None]
        retry = Retry(min(limits, default=None), self._observer.waits)
        step_log, disk = config.checkpoints.step_log, workers.disk
        pause, observer, statistics = self._controlled.pause, self._observer, self._controlled.statistics
        if stored is None:
            session = await open_session(clients, experiment, workers, retry, folder, step_log)
        else:
            session = await disk.run(resume_session, stored, clients, experiment, workers, retry, step_log)
        return TrainingRun(session, pause, observer, statistics)

    async def _train_in(
        self,
        run: TrainingRun,
        experiment: Experiment,
        decisions: DecisionLoop | None,
        chain_decisions: ChainDecisions | None,
        *,
        resumed: bool,
    ) -> TrainingResult:
        structlog.contextvars.bind_contextvars(session=run.session.id)
        controlled = self._controlled
        self._observer.opened(run)
        controlled.begin(run, decisions, chain_decisions)
        self._listener.session_opened(run.deployer)
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._workers.load.run, experiment.close)
            if decisions is not None:
                self._listener.engine_started(decisions)
                await stack.enter_async_context(decisions.running(run.deployer))
            if chain_decisions is not None:
                measure = partial(measure_meanwhile, run.session)
                await stack.enter_async_context(chain_decisions.running(run.deployer, measure))
            return await run.run(self._listener.finished, resumed=resumed)


def _gone(session_id: str, gone: GoneError) -> str:
    return (
        f"{gone}; should it come back there, `edge-agent run --resume` goes on, and after `edge-agent forget {session_id}` it "
        "begins from the start"
    )
