"""A few real steps, for the profile: what a step takes when everything runs at once.

Knows nothing of what the parts take alone.
"""

import statistics
import time
from collections.abc import Mapping

from edge_agent.config import EdgeConfig
from edge_agent.experiment.agent_threads import AgentThreads
from edge_agent.experiment.experiment import Experiment
from edge_agent.placement_config import PlacementSection
from edge_agent.sessions.device_worker import DeviceWorker
from edge_agent.sessions.links_between import dial_peers
from edge_agent.sessions.opening import open_session
from edge_agent.training.events import StepFinished
from edge_agent.training.links import Links
from edge_agent.training.recovery import Recovery
from edge_agent.training.step_aggregator import StepAggregator
from edge_agent.training.step_boundary import StepBoundary
from edge_agent.training.step_runner import StepRunner
from shared.client.retry import Retry
from shared.client.trainer import TrainerClient
from shared.events import Events
from shared.events.worker import LoadEncoded, Received
from shared.runtime.placement_executor import PlacementExecutor

STALENESS = 5
"""Enough for the slowest phase to be what a step takes."""
WARM_UP_STEPS = 15
PLACED_WARM_UP_STEPS = 6
"""Fewer, because without late gradients there is no pipeline to fill."""


async def busy_seconds(
    client: TrainerClient, config: EdgeConfig, cut: int, codec: str, threads: AgentThreads, steps: int
) -> float | None:
    """Seconds per step where the edge is the slowest phase, with late gradients; None where it is not.

    codec: of the features; error gradients come in float32.
    """
    watch = await _train(client, config, cut, STALENESS, codec, threads, steps)
    if statistics.median(watch.waiting[WARM_UP_STEPS:-STALENESS]) == 0:
        return None
    steady = watch.ends[WARM_UP_STEPS:-STALENESS]
    return (steady[-1] - steady[0]) / (len(steady) - 1)


async def turn_seconds(client: TrainerClient, config: EdgeConfig, cut: int, threads: AgentThreads, steps: int) -> float:
    """Mean seconds at K = 0 from the arrival of an error gradient to the moment the next feature is ready to be sent."""
    watch = await _train(client, config, cut, 0, "fp32", threads, steps)
    return statistics.fmean(watch.turns[WARM_UP_STEPS:])


async def placed_seconds(
    clients: Mapping[str, TrainerClient], experiment: Experiment, threads: AgentThreads, steps: int
) -> float:
    """Return the mean seconds of a step under the placement of an experiment of its own, which is used up."""
    staleness = experiment.placement.staleness
    watch = await _train_under(clients, experiment, threads, PLACED_WARM_UP_STEPS + steps + staleness)
    steady = watch.ends[PLACED_WARM_UP_STEPS - 1 : len(watch.ends) - staleness]
    return (steady[-1] - steady[0]) / (len(steady) - 1)


class _StepTimes:
    """Records the times at which steps were done, the time of the edge's turns, and the number of steps whose error
    gradient waited."""

    def __init__(self, events: Events, executor: PlacementExecutor) -> None:
        """executor: of the edge's worker, before its first step."""
        self._executor = executor
        self.ends: list[float] = []
        self.turns: list[float] = []
        self.waiting: list[int] = []
        self._arrived = time.monotonic()
        events.subscribe(StepFinished, lambda _event: self._note_step())
        events.subscribe(Received, lambda _event: self._begin_turn())
        events.subscribe(LoadEncoded, lambda event: self.turns.append(event.end_seconds - self._arrived))

    def _note_step(self) -> None:
        self.ends.append(time.monotonic())
        self.waiting.append(self._executor.waiting["arrived"])

    def _begin_turn(self) -> None:
        """A turn of the edge begins with what comes, and ends with what is encoded."""
        self._arrived = time.monotonic()


def _ignore(*_news: object) -> None:
    pass


async def _train(
    client: TrainerClient, config: EdgeConfig, cut: int, staleness: int, codec: str, threads: AgentThreads, steps: int
) -> _StepTimes:
    """Train a copy of the model over the real link for so many steps after the warm-up, and throw it away."""
    deployment = {"cut": cut, "staleness": staleness, "codec": codec, "downlink_codec": "fp32", "backward": "replay"}
    changed = config.deployment.model_copy(update=deployment)
    experiment = Experiment(config.model_copy(update={"deployment": changed, "placement": PlacementSection()}))
    clients = {config.only_trainer.name: client}
    return await _train_under(clients, experiment, threads, WARM_UP_STEPS + steps + staleness)


async def _train_under(
    clients: Mapping[str, TrainerClient], experiment: Experiment, threads: AgentThreads, stop_step: int
) -> _StepTimes:
    """Train an experiment until this step, and throw it away."""
    events, boundary = Events(), StepBoundary()
    session = await open_session(clients, experiment, threads, Retry(0))
    try:
        device = await DeviceWorker.made(session.state, events.emit)
        worker = device.placed
        try:
            joined = await Recovery(session, device).join_or_go_back()
            await dial_peers(session, joined.tickets)
            aggregator, watch = StepAggregator(events, worker, _ignore), _StepTimes(events, worker.executor)
            step_runner = StepRunner(session, worker, aggregator, boundary)
            async with (
                Links(session, worker.executor, events.emit) as links,
                step_runner.batches_from(0, stop_step) as batches,
            ):
                await step_runner.do(links, batches, stop_step)
        finally:
            await worker.stop()
            await threads.reading.run(experiment.close)
    except BaseException:
        await session.abandon()
        raise
    await session.close()
    return watch
