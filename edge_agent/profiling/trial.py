"""A few real steps at one cut, for the profile: what a step takes of the edge when everything runs at once.

Knows nothing of what the parts take alone.
"""

import statistics
import time
from typing import NoReturn

from prometheus_client import CollectorRegistry

from edge_agent.config import EdgeConfig
from edge_agent.experiment.building import Experiment
from edge_agent.observability.metrics import EdgeMetrics
from edge_agent.observability.observer import Progress, RunObserver
from edge_agent.training.pipeline import Pipeline
from edge_agent.training.prefetch import Prefetcher
from edge_agent.training.session import EdgeSession
from edge_agent.training.workers import Workers
from shared.client.retry import Retry
from shared.client.trainer import TrainerClient
from shared.client.training_call import Stream
from shared.codec import FeedbackMode
from shared.errors import IsthmusError
from shared.training.policies import POLICIES
from shared.transport.stream.framing import WireTensor
from shared.version import PROTOCOL_VERSION
from shared.wire.isthmus.v1.trainer_pb2 import Attach, Fence, Position

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


class _Watch(RunObserver):
    """When steps were done, how long the edge's turns took, and how many gradients waited for it."""

    def __init__(self, steps: int) -> None:
        super().__init__(EdgeMetrics(CollectorRegistry()), Progress(steps), self._note, None)
        self.ends: list[float] = []
        self.turns: list[float] = []
        self.waiting: list[int] = []
        self._arrived = time.monotonic()

    def watch(self, pipeline: Pipeline) -> None:
        """Look at this pipeline's queues."""
        self._pipeline = pipeline

    def _note(self, _progress: Progress) -> None:
        self.ends.append(time.monotonic())
        self.waiting.append(self._pipeline.waiting["apply"])

    def downloaded(self, tensor: WireTensor, raw_bytes: int) -> None:
        """A turn of the edge begins."""
        super().downloaded(tensor, raw_bytes)
        self._arrived = time.monotonic()

    def span(self, phase: str, what: str, step: int, start_seconds: float, end_seconds: float) -> None:
        """A turn ends with what is encoded."""
        super().span(phase, what, step, start_seconds, end_seconds)
        if what == "encode":
            self.turns.append(end_seconds - self._arrived)


class _OneStream:
    """Implements `edge_agent.training.pipeline.Link`: a trial whose stream is lost has failed."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream

    async def resume(self, failure: IsthmusError, position: object) -> NoReturn:  # noqa: ARG002 - nothing is resumed
        """See `Link`."""
        raise failure


async def _train(
    client: TrainerClient, config: EdgeConfig, cut: int, staleness: int, codec: str, workers: Workers, steps: int
) -> _Watch:
    """Train a copy of the model over the real link for so many steps after the warm-up, and throw it away."""
    deployment = {"cut": cut, "staleness": staleness, "codec": codec, "downlink_codec": "fp32"}
    changed = config.deployment.model_copy(update=deployment)
    experiment = Experiment(config.model_copy(update={"deployment": changed}))
    stop_step = WARM_UP_STEPS + steps + staleness
    watch = _Watch(stop_step)
    feedback = FeedbackMode(config.deployment.feedback)
    pipeline = Pipeline(POLICIES["replay"](experiment.stage), experiment.deployment, feedback, workers, watch)
    watch.watch(pipeline)
    session = await EdgeSession.open(client, experiment, workers, Retry(0))
    session.fence = lambda: Fence(session_epoch=1)
    try:
        attach = Attach(session_id=session.id, session_epoch=1, protocol_version=PROTOCOL_VERSION, position=Position())
        call, _ = await client.attach(attach, pipeline.in_flight.accept, pipeline.in_flight.oldest, watch.delivered)
        watch.attached(call.stream)
        try:
            async with Prefetcher(experiment.loader.iterate(0, stop_step), workers.load) as batches:
                await pipeline.run(_OneStream(call.stream), batches, 0, stop_step)
            await call.end()
        except BaseException:
            call.cancel()
            raise
        finally:
            await workers.load.run(experiment.close)
    except BaseException:
        await session.abandon()
        raise
    await session.close()
    return watch
