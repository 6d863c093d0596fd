"""One training run from the edge's side: open a session, train epoch by epoch, evaluate, bring the weights home.

`train` is the call for a notebook; `edge-agent run` makes the same one.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack

import structlog
import torch
from prometheus_client import CollectorRegistry

from edge_agent.adaptation.decisions import DecisionLoop, open_decisions
from edge_agent.adaptation.engine_inputs import profile_of
from edge_agent.adaptation.planned_start import planned_start
from edge_agent.config import EdgeConfig
from edge_agent.control import Controlled, serving_control
from edge_agent.experiment.building import Experiment
from edge_agent.observability.metrics import EdgeMetrics
from edge_agent.observability.observer import Progress, RunObserver
from edge_agent.observability.timeline import Timeline
from edge_agent.training.deployer import Deployer
from edge_agent.training.loop import TrainingRun
from edge_agent.training.result import TrainingResult
from edge_agent.training.resuming import Resume, prepare
from edge_agent.training.session_store import sessions_folder
from edge_agent.training.shutdown import Shutdown
from edge_agent.training.workers import Workers
from shared.client.credentials import trainer_access
from shared.client.trainer import TrainerClient
from shared.errors import ClosedError, GoneError, ProtocolError
from shared.telemetry.metrics import serving_metrics
from shared.transport.rpc.malloc import keep_message_memory

_log = structlog.get_logger(__name__)


def _ignore(_news: object) -> None:
    pass


def train(config: EdgeConfig, on_progress: Callable[[Progress], None] = _ignore) -> TrainingResult:
    """Train as `config` says and return the figures and the trained module. Blocks until it is done.

    Works in a notebook, whose own event loop is left alone. on_progress: called after every step, on another thread.
    Raises IsthmusError (`shared.errors`) for everything that a user, the data or the trainer can get wrong.
    """
    stoppers: list[Callable[[], object]] = []

    def run() -> TrainingResult:
        with asyncio.Runner() as runner:
            loop = runner.get_loop()
            task = loop.create_task(run_training(config, on_progress))
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
    on_progress: Callable[[Progress], None] = _ignore,
    on_start: Callable[[Deployer], None] = _ignore,
    on_engine: Callable[[DecisionLoop], None] = _ignore,
    *,
    on_result: Callable[[TrainingResult], object] = _ignore,
    resume: Resume | None = None,
    shutdown: Shutdown | None = None,
) -> TrainingResult:
    """`train` for callers that have an event loop of their own; nothing heavy runs on it.

    on_start: given, before the first step, what can change the deployment while the run goes on. on_engine: given who
    changes it by itself, if anyone does, to be told what to leave alone. on_result: keeps the result, on another thread; the
    session is resumable until that is done. Raises StoppedError when `stop` asked for it.
    """
    shutdown = shutdown or Shutdown()
    shutdown.when_requested()
    try:
        return await _trained(config, on_progress, on_start, on_engine, on_result, resume, shutdown)
    except asyncio.CancelledError:
        if shutdown.requested:
            raise shutdown.error("before the first step; nothing was trained") from None
        raise
    finally:
        shutdown.patience_ended()


async def _trained(
    config: EdgeConfig,
    on_progress: Callable[[Progress], None],
    on_start: Callable[[Deployer], None],
    on_engine: Callable[[DecisionLoop], None],
    on_result: Callable[[TrainingResult], object],
    resume: Resume | None,
    shutdown: Shutdown,
) -> TrainingResult:
    """`run_training`; a stop that is asked for before the run takes care of it cancels this."""
    keep_message_memory()
    if config.compute.threads:
        torch.set_num_threads(config.compute.threads)
    folder = sessions_folder(config)
    experiment, stored = await asyncio.to_thread(prepare, config, folder, resume)
    profile = await asyncio.to_thread(profile_of, experiment)
    start = await planned_start(experiment, profile) if profile is not None and stored is None else None
    if start is not None:
        experiment.begin_with(start)
    metrics = EdgeMetrics(CollectorRegistry())
    access = trainer_access(config.trainer, config.tls)
    metrics.watch_token_file(access.token_broken)
    timeline = Timeline() if config.output.trace is not None else None
    observer = RunObserver(metrics, Progress(experiment.steps), on_progress, timeline)
    decisions = await asyncio.to_thread(open_decisions, experiment, profile, observer.meter, metrics.engine)
    controlled = Controlled(config, observer, shutdown, folder)
    with serving_metrics(config.metrics.listen, metrics.registry), Workers.started() as workers:
        async with (
            serving_control(controlled),
            TrainerClient(config.trainer, config.link, metrics.failed, access) as client,
        ):
            anew = False
            while True:
                run = TrainingRun(
                    experiment,
                    observer,
                    workers,
                    client,
                    on_start,
                    controlled.shutdown,
                    controlled.pause,
                    controlled.changed.set,
                )
                controlled.begin(experiment, run, decisions)
                shutdown.when_requested()
                await run.open(stored, folder)
                try:
                    async with AsyncExitStack() as stack:
                        stack.push_async_callback(workers.load.run, experiment.close)
                        if decisions is not None:
                            decisions.attach(run.deployer)
                            on_engine(decisions)
                            await stack.enter_async_context(decisions.running())
                        result = await run.run(on_result, resumed=stored is not None)
                    break
                except GoneError as gone:
                    if run.resumable:
                        raise type(gone)(_gone(run.session_id, gone)) from gone
                    if anew and isinstance(gone.__cause__, ProtocolError):
                        raise gone.__cause__ from None  # the trainer fails at it, and would again
                    if isinstance(gone, ClosedError) or (anew and not run.advanced):
                        raise
                    # Nothing was on both sides yet, so the beginning is what both share.
                    _log.warning("the run begins anew", reason=str(gone))
                    observer.began_anew()
                    anew, stored, experiment = True, None, await asyncio.to_thread(Experiment, config)
                    if start is not None:
                        experiment.begin_with(start)
                    decisions = await asyncio.to_thread(
                        open_decisions, experiment, profile, observer.meter, metrics.engine
                    )
    if timeline is not None and config.output.trace is not None:
        await asyncio.to_thread(timeline.write, config.output.trace)
    return result


def _gone(session_id: str, gone: GoneError) -> str:
    return (
        f"{gone}; should it come back there, `edge-agent run --resume` goes on, and after `edge-agent forget {session_id}` it "
        "begins from the start"
    )
