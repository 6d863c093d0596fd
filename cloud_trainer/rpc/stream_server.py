"""The way of a batch through the trainer: receive and decode, compute (P3), encode and send (P4).

The phases run side by side, joined by queues. The edge's window bounds what is in them, and an edge that sends more than its
K permits is refused. Gradients and reports stay in the session, so that a stream that is lost loses none of them.
"""

import asyncio
import functools
from collections.abc import Awaitable, Callable
from contextlib import suppress

import grpc

from cloud_trainer.metrics import TrainerMetrics
from cloud_trainer.rpc.cloud_compute import CloudCompute
from cloud_trainer.rpc.incoming_batches import EncodedBatch, IncomingBatches
from cloud_trainer.sessions.cloud_batch import CloudBatch
from cloud_trainer.sessions.session import CutSession
from shared.concurrency.tasks import run_together
from shared.errors import ProtocolError
from shared.model.features import Gradients
from shared.tensor_wire import to_wire
from shared.transport.rpc.status import StatusError
from shared.transport.stream.duplex import Duplex
from shared.transport.stream.framing import TensorKey
from shared.wire.isthmus.v1 import trainer_pb2 as pb
from shared.wire.isthmus.v1.tensor_pb2 import Role
from shared.wire.isthmus.v1.trainer_pb2 import (
    Checkpointed,
    Deployment,
    Position,
    StepReport,
    TakeCheckpoint,
    TrainRequest,
    TrainResponse,
)

Stream = Duplex[TrainResponse, TrainRequest]
WAITING_WITHOUT_K = 4
"""At most so many items that no K bounds wait for the compute thread: checkpoints, and batches where no gradient returns."""
WAITING_REPORTS = 4
"""At most so many reports wait for the link; the compute thread waits for room for the next one."""

CheckpointHandler = Callable[[TakeCheckpoint, Callable[[bool], Awaitable[None]]], Awaitable[None]]
"""Takes the checkpoint that was asked for: returns when the state is copied, and tells later whether it was written."""


class StreamServer:
    """Serves one attached stream until the edge ends it. Used on the event loop, but for what `StepListener` tells."""

    def __init__(
        self,
        session: CutSession,
        stream: Stream,
        incoming: IncomingBatches,
        compute: CloudCompute,
        metrics: TrainerMetrics,
        take_checkpoint: CheckpointHandler,
    ) -> None:
        """incoming: has accepted every tensor that `stream` brings. Made on the event loop."""
        self._session = session
        self._stream = stream
        self._incoming = incoming
        self._compute = compute
        self._metrics = metrics
        self._take_checkpoint = take_checkpoint
        self._loop = asyncio.get_running_loop()
        self._in_flight = 0
        """Batches whose gradient is not being sent yet, where K bounds them."""
        self._compute_queue: asyncio.Queue[CloudBatch | TakeCheckpoint | None] = asyncio.Queue()
        self._room_without_k = asyncio.Semaphore(WAITING_WITHOUT_K)
        self._send_queue: asyncio.Queue[tuple[int, Deployment, Gradients] | None] = asyncio.Queue()
        self._report_queue: asyncio.Queue[StepReport | None] = asyncio.Queue(WAITING_REPORTS)

    @property
    def waiting(self) -> dict[str, int]:
        """Batches that wait to be computed, and gradients that wait to be sent."""
        return {"compute": self._compute_queue.qsize(), "send": self._send_queue.qsize()}

    async def run(self, position: Position | None = None) -> None:
        """Train until the edge ends the stream. Raises the first IsthmusError that ends it early.

        position: how far the edge has come; the gradients and reports that it lacks are sent again first.
        """
        missing: list[StepReport] = []
        if position is not None:
            answers = self._session.training.answers
            missing = [report for _, report in answers.reports.since(position.report_step)]
            for step, (deployment, gradients) in answers.gradients.since(position.gradient_step):
                self._in_flight += 1
                self._send_queue.put_nowait((step, deployment, gradients))
        self._metrics.streams.add(self)
        try:
            await run_together(
                self._receive(), self._compute_all(), self._send_reports(missing), self._send_gradients()
            )
        finally:
            self._metrics.streams.discard(self)

    async def say_stopping(self) -> None:
        """Ask the edge to end its batches, to take a checkpoint and to end the stream."""
        with suppress(Exception):
            await self._stream.write(TrainResponse(stopping=pb.Stopping()))

    async def _receive(self) -> None:
        """Take batches, and the messages between them, until the edge ends the stream."""
        incoming = self._incoming
        while (event := await self._stream.receive()) is not None:
            message, tensor = event
            if tensor is None:
                await self._take_message(message)
                continue
            if message.ByteSize() > 0:
                raise ProtocolError(f"{tensor.key}: a message that ends a tensor may hold an ack, and no more")
            self._session.statistics.received_bytes += len(tensor.payload)
            self._metrics.bytes_up.inc(len(tensor.payload))
            if (batch := incoming.add(tensor)) is not None:
                await self._take_batch(batch)
        if not incoming.between_batches:
            raise ProtocolError("the stream ended in the middle of a batch")
        await self._compute_queue.put(None)

    async def _take_message(self, message: TrainRequest) -> None:
        if not self._incoming.between_batches:
            raise ProtocolError("a message that is no frame came in the middle of a batch; it may come between two")
        if message == TrainRequest(deployment=message.deployment):
            self._incoming.change_deployment(message.deployment)
        elif message == TrainRequest(checkpoint=message.checkpoint):
            await self._room_without_k.acquire()
            await self._compute_queue.put(message.checkpoint)
        else:
            raise ProtocolError(
                "a message came that is neither a frame, an ack, a deployment alone nor a checkpoint alone"
            )

    async def _take_batch(self, encoded: EncodedBatch) -> None:
        deployment, step = self._incoming.deployment, encoded.labels.key.step
        gradients_return = self._session.training.gradients_return
        if gradients_return:
            self._admit(step, deployment)
        else:
            await self._room_without_k.acquire()
        features = []
        for encoding in encoded.features:
            feature = await self._compute.decode(encoding)
            self._metrics.saved_up.inc(max(feature.nbytes - len(encoding.payload), 0))
            features.append(feature)
        labels = await self._compute.decode(encoded.labels)
        await self._compute_queue.put(CloudBatch(step, deployment, tuple(features), labels, gradients_return))

    def _admit(self, step: int, deployment: Deployment) -> None:
        """Count a batch as in flight. Raises StatusError where the edge has sent more than its K lets it."""
        self._in_flight += 1
        if self._in_flight > deployment.staleness + 1:
            raise StatusError(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"with step {step} there are {self._in_flight} batches in flight; K is {deployment.staleness}, so "
                f"there may be {deployment.staleness + 1}",
            )

    async def _compute_all(self) -> None:
        """P3: batches and checkpoints in the order of their arrival."""
        while (item := await self._compute_queue.get()) is not None:
            if isinstance(item, TakeCheckpoint):
                self._room_without_k.release()
                await self._take_checkpoint(item, functools.partial(self._say_checkpointed, item.name))
                continue
            if not item.gradients_return:
                self._room_without_k.release()
            if item.deployment.cut != self._session.training.deployment.cut:
                raise ProtocolError(f"step {item.step} was sent at cut {item.deployment.cut}, which has moved since")
            await self._report_queue.put(await self._compute.train(item, self))
        await self._send_queue.put(None)
        await self._report_queue.put(None)

    def gradients_computed(self, batch: CloudBatch, gradients: Gradients) -> None:
        """See `StepListener`: the edge waits for them, so they leave before the cloud's own update."""
        self._loop.call_soon_threadsafe(self._send_queue.put_nowait, (batch.step, batch.deployment, gradients))

    def step_computed(self, report: StepReport, samples: int) -> None:
        """See `StepListener`."""
        self._session.statistics.loss = report.loss
        self._metrics.steps.inc()
        self._metrics.samples.inc(samples)
        self._metrics.phase_seconds["cloud"].observe(report.compute_seconds)

    async def _say_checkpointed(self, name: pb.CheckpointName, written: bool) -> None:
        note = Checkpointed(name=name, written=written)
        with suppress(Exception):  # the stream has ended meanwhile; the edge will ask what there is
            await self._stream.write(TrainResponse(checkpointed=note))

    async def _send_reports(self, missing: list[StepReport]) -> None:
        for lost in missing:
            await self._stream.write(TrainResponse(report=lost))
        while (report := await self._report_queue.get()) is not None:
            report.downlink_bits_per_second = self._stream.link.bits_per_second or 0.0
            self._session.statistics.downlink_bits_per_second = report.downlink_bits_per_second
            await self._stream.write(TrainResponse(report=report))

    async def _send_gradients(self) -> None:
        while (item := await self._send_queue.get()) is not None:
            step, deployment, gradients = item
            tensors = []
            for slot, gradient in enumerate(gradients):
                if gradient is not None:
                    encoding = await self._compute.encode(deployment, gradient)
                    key = TensorKey(step, Role.ROLE_ERROR_GRADIENT, deployment.cut, slot)
                    tensors.append(to_wire(encoding, key, deployment.version))
                    self._metrics.saved_down.inc(max(gradient.nbytes - len(encoding.payload), 0))
            # Once they are under way, the edge may settle the step and send the next one before we know.
            self._in_flight -= 1
            for tensor in tensors:
                await self._stream.send(tensor)
                self._session.statistics.sent_bytes += len(tensor.payload)
                self._metrics.bytes_down.inc(len(tensor.payload))
