"""A few real steps at one cut, for the profile: what a step takes of the edge when everything runs at once.

Knows nothing of what the parts take alone.
"""

import statistics
import time
from typing import NoReturn

from edge_agent.config import EdgeConfig
from edge_agent.data.prefetch import Prefetcher
from edge_agent.experiment.building import Experiment
from edge_agent.experiment.workers import Workers
from edge_agent.placement_config import PlacementSection
from edge_agent.sessions.opening import open_session
from edge_agent.training.edge_compute import EdgeCompute
from edge_agent.training.listener import RunListener
from edge_agent.training.live_deployment import LiveDeployment
from edge_agent.training.pipeline import Pipeline
from edge_agent.training.step_boundary import StepBoundary
from edge_agent.training.training_stream import TrainingStream
from edge_agent.training.window import Window
from shared.client.retry import Retry
from shared.client.stream_call import Stream
from shared.client.trainer import TrainerClient
from shared.codec import FeedbackMode
from shared.errors import IsthmusError
from shared.training.policies import Replay
from shared.transport.stream.framing import WireTensor
from shared.wire.isthmus.v1.trainer_pb2 import StepReport, TrainResponse

STALENESS = 5
"""Enough for the slowest phase to be what a step takes."""
WARM_UP_STEPS = 15


async def busy_seconds(
    client: TrainerClient, config: EdgeConfig, cut: int, codec: str, workers: Workers, steps: int
) -> float | None:
    """Seconds per step where the edge is the slowest phase, with late gradients; None where it is not.

    codec: of the features; error gradients come in float32.
    """
    watch = await _train(client, config, cut, STALENESS, codec, workers, steps)
    if statistics.median(watch.waiting[WARM_UP_STEPS:-STALENESS]) == 0:
        return None
    steady = watch.ends[WARM_UP_STEPS:-STALENESS]
    return (steady[-1] - steady[0]) / (len(steady) - 1)


async def turn_seconds(client: TrainerClient, config: EdgeConfig, cut: int, workers: Workers, steps: int) -> float:
    """Mean seconds at K = 0 from the arrival of an error gradient to the moment the next feature is ready to be sent."""
    watch = await _train(client, config, cut, 0, "fp32", workers, steps)
    return statistics.fmean(watch.turns[WARM_UP_STEPS:])


class _Watch(RunListener):
    """When steps were done, how long the edge's turns took, and how many gradients waited for it."""

    def __init__(self, window: Window) -> None:
        self._window = window
        self.ends: list[float] = []
        self.turns: list[float] = []
        self.waiting: list[int] = []
        self._arrived = time.monotonic()

    def step_reported(self, _report: StepReport, _samples: int, /) -> None:
        """A step is done."""
        self.ends.append(time.monotonic())
        self.waiting.append(self._window.gradients_to_apply)

    def downloaded(self, _tensor: WireTensor, _raw_bytes: int, /) -> None:
        """A turn of the edge begins."""
        self._arrived = time.monotonic()

    def span(self, _phase: str, what: str, _step: int, _start_seconds: float, end_seconds: float, /) -> None:
        """A turn ends with what is encoded."""
        if what == "encode":
            self.turns.append(end_seconds - self._arrived)


class _OneStream:
    """Implements `edge_agent.training.pipeline.StreamSource`: a trial whose stream is lost has failed."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream

    async def reattach(self, failure: IsthmusError) -> NoReturn:
        """See `StreamSource`."""
        raise failure


def _ignore(_message: TrainResponse) -> None:
    pass


async def _train(
    client: TrainerClient, config: EdgeConfig, cut: int, staleness: int, codec: str, workers: Workers, steps: int
) -> _Watch:
    """Train a copy of the model over the real link for so many steps after the warm-up, and throw it away."""
    deployment = {"cut": cut, "staleness": staleness, "codec": codec, "downlink_codec": "fp32"}
    changed = config.deployment.model_copy(update=deployment)
    experiment = Experiment(config.model_copy(update={"deployment": changed, "placement": PlacementSection()}))
    stop_step = WARM_UP_STEPS + steps + staleness
    window = Window()
    watch = _Watch(window)
    feedback = FeedbackMode(config.deployment.feedback)
    compute = EdgeCompute(experiment.held, Replay, feedback, workers)
    live = LiveDeployment(experiment.deployment, watch)
    pipeline = Pipeline(compute, window, live, StepBoundary(), watch, _ignore)
    session = await open_session(client, experiment, workers, Retry(0))
    training_stream = TrainingStream(client, session.stored, workers.disk, window, watch)
    try:
        await training_stream.attach(window.position)
        try:
            async with Prefetcher(experiment.loader.iterate(0, stop_step), workers.load, pipeline.wake) as batches:
                await pipeline.run(_OneStream(training_stream.stream), batches, stop_step)
            await training_stream.end()
        finally:
            await workers.load.run(experiment.close)
    except BaseException:
        training_stream.drop()
        await session.abandon()
        raise
    await session.close()
    return watch
