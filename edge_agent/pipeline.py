"""The way of a batch through the edge: load, compute (P1), encode and upload (P2), download and decode (P4), apply.

Each module runs on its own and is joined to the next by a bounded queue; torch and codecs run on threads of their own.
"""

import asyncio
import time
from typing import Protocol

from torch import Tensor

from edge_agent.admission import Admission
from edge_agent.batches import Prefetcher
from edge_agent.client import Stream
from edge_agent.data import Batch
from edge_agent.in_flight import BatchInFlight, InFlight
from edge_agent.workers import Workers
from shared.codec import Codec, Encoded, FeedbackMode, codec_by_name, compensate, compression_error, is_lossy
from shared.errors import ProtocolError
from shared.model.policies import BackwardPolicy
from shared.model.spec import TensorSpec
from shared.tasks import run_together
from shared.tensor_wire import decoded, encoded, to_wire
from shared.transport.framing import WireTensor
from shared.wire.isthmus.v1.tensor_pb2 import Role
from shared.wire.isthmus.v1.trainer_pb2 import Deployment, StepReport, TrainRequest

UNLIMITED_QUEUE = 4
"""Features that wait for the link where no gradient comes back and so no K bounds them."""


class Observer(Protocol):
    """Who wants to know what the pipeline does; called on the event loop, so it must be quick. Times are time.monotonic."""

    def span(self, module: str, what: str, step: int, start_seconds: float, end_seconds: float) -> None:
        """One module worked on one step, as `what` says."""

    def edge_computed(self, step: int, seconds: float) -> None:
        """T1 of a step: its forward, and its backward with update."""

    def gradient_applied(self, step: int, staleness: int) -> None:
        """The gradient of a step was applied so many steps late."""

    def uploaded(self, payload_bytes: int, raw_bytes: int) -> None:
        """A tensor was handed to the link; raw_bytes: before its codec."""

    def downloaded(self, tensor: WireTensor, raw_bytes: int) -> None:
        """A tensor has come from the link."""

    def reported(self, report: StepReport, samples: int) -> None:
        """The cloud has done its part of a step."""


class Pipeline:
    """Runs steps over one attached stream. Several runs may follow each other; each ends with nothing in flight.

    `deployment` holds for every batch that is forwarded from now on; `change` replaces it while batches are in flight.
    """

    def __init__(
        self,
        policy: BackwardPolicy,
        deployment: Deployment,
        feedback: FeedbackMode,
        workers: Workers,
        observer: Observer,
    ) -> None:
        self.policy = policy
        self.deployment = deployment
        self.feedback = feedback
        self.workers = workers
        self.observer = observer
        self.in_flight = InFlight()
        self.announced = deployment
        """What the trainer has been told last; the deployment of everything that is sent now."""
        self._draining = False

    def change(
        self, *, staleness: int | None = None, codec: str | None = None, downlink_codec: str | None = None
    ) -> None:
        """Change K or codecs from the next batch on; nothing is drained. Raises ConfigError for a codec that is not there."""
        changed = Deployment()
        changed.CopyFrom(self.deployment)
        changed.epoch += 1
        if staleness is not None:
            changed.staleness = staleness
        changed.codec = codec_by_name(codec or changed.codec).name
        changed.downlink_codec = codec_by_name(downlink_codec or changed.downlink_codec).name
        self.deployment = changed

    async def run(self, stream: Stream, batches: Prefetcher, first_step: int, stop_step: int) -> int:
        """Train on steps [first_step, stop_step), one batch each, until every one of them is settled on both sides.

        Returns the step to go on with: `stop_step`, or an earlier one when `drain` was called. Raises the first
        IsthmusError of any module; the stream is of no more use then.
        """
        run = _Run(self, stream, batches, first_step, stop_step)
        await run_together(run.compute(), run.upload(), run.receive())
        self._draining = False
        return run.stop_step

    def redeploy(self, deployment: Deployment) -> None:
        """Go on under a deployment that the trainer holds already; between two runs."""
        self.deployment = self.announced = deployment

    @property
    def gradients_come(self) -> bool:
        """Whether anything on the edge learns."""
        return self.policy.needs_gradients

    def drain(self) -> None:
        """Let the run end with the batch that starts next: what moves blocks needs both sides at one step."""
        self._draining = True

    @property
    def draining(self) -> bool:
        """Whether the batch that starts now shall be the last of this run."""
        return self._draining


class _Run:
    """One drained stretch of steps: the queues between the modules, and the modules."""

    def __init__(
        self, pipeline: Pipeline, stream: Stream, batches: Prefetcher, first_step: int, stop_step: int
    ) -> None:
        self._pipeline = pipeline
        self._stream = stream
        self._workers = pipeline.workers
        self._observer = pipeline.observer
        self._in_flight = pipeline.in_flight
        self._batches = batches
        self._first_step, self.stop_step = first_step, stop_step
        self._admission = Admission(first_step)
        # Asked once: stashing puts other weights into the blocks for the time of a forward, on the compute thread.
        self._gradients_come = pipeline.gradients_come
        # Admission bounds what is in these two; where no gradient comes back, the first bounds itself.
        self._features: asyncio.Queue[tuple[BatchInFlight, Tensor, Tensor] | None] = asyncio.Queue(
            0 if self._gradients_come else UNLIMITED_QUEUE
        )
        self._gradients: asyncio.Queue[tuple[BatchInFlight, Tensor]] = asyncio.Queue()
        self._arrived = asyncio.Event()
        batches.on_ready = self._arrived.set

    async def compute(self) -> None:
        """P1: the next batch goes first, if it may start, then a gradient that has come.

        The other way round, all K + 1 batches are settled before the next one starts, and link and cloud stand still.
        """
        while self._admission.started < self.stop_step or self._gradients_left(self._admission.settled):
            if self._may_start() and not self._batches.empty:
                if self._pipeline.draining:
                    self.stop_step = self._admission.started + 1
                await self._forward(self._batches.take())
            elif not self._gradients.empty():
                await self._apply(*self._gradients.get_nowait())
            else:
                self._arrived.clear()
                await self._arrived.wait()
        await self._features.put(None)

    def _gradients_left(self, gradients: int) -> bool:
        """Whether there are more to come than those before step `gradients`."""
        return self._gradients_come and gradients < self.stop_step

    def _may_start(self) -> bool:
        limit = self._pipeline.deployment.staleness if self._gradients_come else None
        return self._admission.started < self.stop_step and self._admission.open(limit)

    async def _forward(self, batch: Batch) -> None:
        step, deployment = self._admission.start(), self._pipeline.deployment
        assert batch.step == step
        alone = deployment.staleness == 0
        started = time.monotonic()
        feature = await self._workers.compute.run(self._pipeline.policy.forward, step, batch.inputs, alone=alone)
        ended = time.monotonic()
        self._observer.span("edge", "forward", step, started, ended)
        gradient_due = self._gradients_come
        samples, parts = len(batch.labels), 1 + gradient_due
        item = BatchInFlight(step, deployment, samples, TensorSpec.of(feature), ended - started, parts)
        self._in_flight.add(item, gradient_due=gradient_due)
        await self._features.put((item, feature, batch.labels))

    async def _apply(self, batch: BatchInFlight, gradient: Tensor) -> None:
        staleness = self._admission.settle(batch.step)
        started = time.monotonic()
        await self._workers.compute.run(self._backward, batch, gradient)
        ended = time.monotonic()
        self._observer.span("edge", "backward", batch.step, started, ended)
        self._observer.edge_computed(batch.step, batch.forward_seconds + ended - started)
        self._observer.gradient_applied(batch.step, staleness)

    def _backward(self, batch: BatchInFlight, gradient: Tensor) -> None:
        if batch.compression_error is not None:
            gradient = compensate(gradient, batch.compression_error, batch.samples, self._pipeline.feedback)
            batch.compression_error = None
        self._pipeline.policy.backward(batch.step, gradient)

    async def upload(self) -> None:
        """P2: encode and send features, and labels with them."""
        raw = codec_by_name("raw")
        while (item := await self._features.get()) is not None:
            batch, feature, labels = item
            started = time.monotonic()
            encoding = await self._encode(batch, feature)
            self._observer.span("codec", "encode", batch.step, started, time.monotonic())
            if batch.deployment.epoch != self._pipeline.announced.epoch:
                await self._stream.write(TrainRequest(deployment=batch.deployment))
                self._pipeline.announced = batch.deployment
            for part, role in ((encoding, Role.ROLE_FEATURE), (raw.encode(labels), Role.ROLE_LABEL)):
                await self._stream.send(to_wire(part, batch.step, role, batch.deployment.epoch))
            self._observer.uploaded(len(encoding.payload) + labels.nbytes, batch.feature.bytes + labels.nbytes)

    async def _encode(self, batch: BatchInFlight, feature: Tensor) -> Encoded:
        codec = codec_by_name(batch.deployment.codec)
        feedback = self._gradients_come and self._pipeline.feedback is not FeedbackMode.OFF
        if feedback and is_lossy(codec.name):
            encoding, batch.compression_error = await self._workers.codec.run(_encode_with_error, codec, feature)
            return encoding
        return await encoded(feature, codec, self._workers.codec)

    async def receive(self) -> None:
        """P4: take gradients and reports until there is one of each for every step."""
        reports = gradients = self._first_step
        while reports < self.stop_step or self._gradients_left(gradients):
            event = await self._stream.receive()
            if event is None:
                raise ProtocolError("the trainer ended the stream in the middle of training")
            message, tensor = event
            if tensor is not None:
                batch = self._in_flight.answered(tensor.step)
                self._observer.downloaded(tensor, batch.feature.bytes)
                self._gradients.put_nowait((batch, await decoded(tensor, self._workers.codec)))
                self._arrived.set()
                gradients += 1
            if message.HasField("report"):
                self._report(message.report)
                reports += 1

    def _report(self, report: StepReport) -> None:
        batch = self._in_flight.answered(report.step)
        self._observer.reported(report, batch.samples)
        if not self._gradients_come:
            self._admission.settle(report.step)
            self._observer.edge_computed(report.step, batch.forward_seconds)
            self._arrived.set()


def _encode_with_error(codec: Codec, feature: Tensor) -> tuple[Encoded, Tensor]:
    encoding = codec.encode(feature)
    return encoding, compression_error(codec.decode(encoding), feature.cpu())
