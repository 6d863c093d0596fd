"""The way of a batch through the trainer: receive and decode, compute (P3), encode and send.

Each is joined to the next by a queue that the edge's admission bounds; an edge that does not keep its K is refused.
"""

import asyncio
import time
from dataclasses import dataclass

import grpc
from torch import Tensor

from cloud_trainer.session import Session
from shared.codec import codec_by_name
from shared.errors import ProtocolError
from shared.tasks import run_together
from shared.telemetry.metrics import TrainingMetrics
from shared.tensor_wire import decoded, encoded, to_wire
from shared.threads import Worker
from shared.transport.duplex import Duplex
from shared.transport.framing import WireTensor
from shared.transport.status import Refusal
from shared.wire.isthmus.v1.tensor_pb2 import Role
from shared.wire.isthmus.v1.trainer_pb2 import Deployment, StepReport, TrainRequest, TrainResponse

Stream = Duplex[TrainResponse, TrainRequest]
UNLIMITED_QUEUE = 4
"""Batches that wait for the compute thread where no gradient goes back and so no K bounds them."""


@dataclass(frozen=True, slots=True)
class _Batch:
    step: int
    deployment: Deployment
    feature: Tensor
    labels: Tensor


class TrainingStream:
    """Serves one attached stream until the edge ends it."""

    def __init__(
        self, session: Session, stream: Stream, compute: Worker, codec: Worker, metrics: TrainingMetrics
    ) -> None:
        self._session = session
        self._stream = stream
        self._compute_worker = compute
        self._codec_worker = codec
        self._metrics = metrics
        self._in_flight = 0
        self._batches: asyncio.Queue[_Batch | None] = asyncio.Queue(0 if session.sends_gradients else UNLIMITED_QUEUE)
        self._gradients: asyncio.Queue[tuple[_Batch, Tensor] | None] = asyncio.Queue()
        self._reports: asyncio.Queue[StepReport | None] = asyncio.Queue(UNLIMITED_QUEUE)

    async def serve(self) -> None:
        """Run until the edge ends the stream. Raises the first IsthmusError that ends it early."""
        await run_together(self._receive(), self._compute(), self._report(), self._send())

    async def _receive(self) -> None:
        feature: WireTensor | None = None
        while (event := await self._stream.receive()) is not None:
            message, tensor = event
            if tensor is None:
                self._change(message)
                continue
            self._session.received_bytes += len(tensor.payload)
            self._metrics.bytes_up.inc(len(tensor.payload))
            if tensor.role == Role.ROLE_FEATURE:
                feature = tensor
                continue
            assert feature is not None, "announcements come as feature, then label"
            await self._admit(feature, tensor)
        await self._batches.put(None)

    def _change(self, message: TrainRequest) -> None:
        if not message.HasField("deployment"):
            raise ProtocolError("a message came that is neither a frame, an ack nor a deployment")
        self._session.change_deployment(message.deployment)

    async def _admit(self, feature: WireTensor, labels: WireTensor) -> None:
        deployment = self._session.deployment
        self._in_flight += 1
        if self._session.sends_gradients and self._in_flight > deployment.staleness + 1:
            raise Refusal(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"step {feature.step} is the {self._in_flight}th batch in flight; K is {deployment.staleness}",
            )
        worker = self._codec_worker
        batch = _Batch(feature.step, deployment, await decoded(feature, worker), await decoded(labels, worker))
        await self._batches.put(batch)

    async def _compute(self) -> None:
        loop = asyncio.get_running_loop()
        while (batch := await self._batches.get()) is not None:
            if batch.deployment.cut != self._session.deployment.cut:
                raise ProtocolError(f"step {batch.step} was sent at cut {batch.deployment.cut}, which has moved since")
            await self._reports.put(await self._compute_worker.run(self._train, batch, loop))
        await self._gradients.put(None)
        await self._reports.put(None)

    def _train(self, batch: _Batch, loop: asyncio.AbstractEventLoop) -> StepReport:
        """One step, on the compute thread. The edge waits for the gradient, so that leaves before the cloud's own update."""
        started = time.monotonic_ns()
        done = self._session.compute(batch.step, batch.feature, batch.labels)
        if done.gradient is not None:
            loop.call_soon_threadsafe(self._gradients.put_nowait, (batch, done.gradient))
        seconds = done.graph_seconds + self._session.update(batch.step)
        self._metrics.steps.inc()
        self._metrics.samples.inc(done.loss.samples)
        self._metrics.loss.set(done.loss.loss)
        self._metrics.module_seconds["cloud"].observe(seconds)
        return StepReport(
            step=batch.step,
            loss=done.loss.loss,
            correct=done.loss.correct,
            compute_seconds=seconds,
            compute_start_nanoseconds=started,
        )

    async def _report(self) -> None:
        while (report := await self._reports.get()) is not None:
            report.downlink_bits_per_second = self._stream.link.bits_per_second or 0.0
            await self._stream.write(TrainResponse(report=report))

    async def _send(self) -> None:
        while (item := await self._gradients.get()) is not None:
            batch, gradient = item
            codec = codec_by_name(batch.deployment.downlink_codec)
            encoding = await encoded(gradient, codec, self._codec_worker)
            tensor = to_wire(encoding, batch.step, Role.ROLE_ERROR_GRADIENT, batch.deployment.epoch)
            # Once it is under way, the edge may settle the step and send the next one before we know.
            self._in_flight -= 1
            await self._stream.send(tensor)
            self._session.sent_bytes += len(tensor.payload)
            self._metrics.bytes_down.inc(len(tensor.payload))
