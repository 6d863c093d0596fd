"""The way of a batch through the trainer: receive and decode, compute (P3), encode and send.

Each is joined to the next by a queue that the edge's admission bounds; an edge that does not keep its K is refused. What
was computed outlives the stream in the session, so that a lost link loses nothing.
"""

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

import grpc
from torch import Tensor

from cloud_trainer.metrics import TrainerMetrics
from cloud_trainer.rpc.announcements import BatchAnnouncements, ReceivedBatch
from cloud_trainer.sessions.session import Session
from shared.codec import codec_by_name
from shared.concurrency.tasks import run_together
from shared.concurrency.threads import Runner
from shared.errors import ProtocolError
from shared.model.features import Features, Gradients
from shared.tensor_wire import decoded, encoded, to_wire
from shared.training.stage_state import bytes_of
from shared.transport.rpc.status import Refusal
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
UNLIMITED_QUEUE = 4
"""What may wait for the compute thread that no K bounds: checkpoints, and batches where no gradient goes back."""


@dataclass(frozen=True, slots=True)
class _Batch:
    step: int
    deployment: Deployment
    features: Features
    labels: Tensor
    gradient_due: bool
    """Whether the edge waits for an error gradient: then K bounds what is in flight."""


CopyState = Callable[[TakeCheckpoint, Callable[[bool], Awaitable[None]]], Awaitable[None]]
"""Copies the session's state, which must be the named one, and returns; later tells the second whether it was written."""


class TrainingStream:
    """Serves one attached stream until the edge ends it."""

    def __init__(
        self,
        session: Session,
        stream: Stream,
        announcements: BatchAnnouncements,
        compute: Runner,
        codec: Runner,
        metrics: TrainerMetrics,
        take_checkpoint: CopyState,
    ) -> None:
        """announcements: what judges the tensors of `stream`."""
        self._session = session
        self._announcements = announcements
        self._take_checkpoint = take_checkpoint
        self._stream = stream
        self._compute_worker = compute
        self._codec_worker = codec
        self._metrics = metrics
        self._in_flight = 0
        self._batches: asyncio.Queue[_Batch | TakeCheckpoint | None] = asyncio.Queue()
        self._unlimited_room = asyncio.Semaphore(UNLIMITED_QUEUE)
        self._gradients: asyncio.Queue[tuple[int, Deployment, Gradients] | None] = asyncio.Queue()
        self._reports: asyncio.Queue[StepReport | None] = asyncio.Queue(UNLIMITED_QUEUE)

    async def serve(self, position: Position | None = None) -> None:
        """Run until the edge ends the stream. Raises the first IsthmusError that ends it early.

        position: what the edge has; gradients and reports that it lacks are sent again first.
        """
        missing: list[StepReport] = []
        if position is not None:
            answers = self._session.answers
            missing = [report for _, report in answers.reports.since(position.report_step)]
            for step, (deployment, gradients) in answers.gradients.since(position.gradient_step):
                self._in_flight += 1
                self._gradients.put_nowait((step, deployment, gradients))
        self._metrics.streams.add(self)
        try:
            await run_together(self._receive(), self._compute(), self._report(missing), self._send())
        finally:
            self._metrics.streams.discard(self)

    @property
    def waiting(self) -> dict[str, int]:
        """Batches that wait to be computed, and gradients that wait to be sent."""
        return {"compute": self._batches.qsize(), "send": self._gradients.qsize()}

    async def _receive(self) -> None:
        announcements = self._announcements
        while (event := await self._stream.receive()) is not None:
            message, tensor = event
            if tensor is None:
                await self._take_note(message)
                continue
            if message.ByteSize() > 0:
                raise ProtocolError(f"{tensor.key}: a message that ends a tensor may hold an ack, and no more")
            self._session.received_bytes += len(tensor.payload)
            self._metrics.bytes_up.inc(len(tensor.payload))
            if (batch := announcements.received(tensor)) is not None:
                await self._admit(batch)
        if not announcements.between_batches:
            raise ProtocolError("the stream ended in the middle of a batch")
        await self._batches.put(None)

    async def _take_note(self, message: TrainRequest) -> None:
        if not self._announcements.between_batches:
            raise ProtocolError("a message that is no frame came in the middle of a batch; it may come between two")
        if message == TrainRequest(deployment=message.deployment):
            self._announcements.announce(message.deployment)
        elif message == TrainRequest(checkpoint=message.checkpoint):
            await self._unlimited_room.acquire()
            await self._batches.put(message.checkpoint)
        else:
            raise ProtocolError(
                "a message came that is neither a frame, an ack, a deployment alone nor a checkpoint alone"
            )

    async def _admit(self, received: ReceivedBatch) -> None:
        deployment, step = self._announcements.deployment, received.labels.key.step
        gradient_due = self._session.sends_gradients
        if not gradient_due:
            await self._unlimited_room.acquire()
        else:
            self._in_flight += 1
            if self._in_flight > deployment.staleness + 1:
                raise Refusal(
                    grpc.StatusCode.FAILED_PRECONDITION,
                    f"with step {step} there are {self._in_flight} batches in flight; K is {deployment.staleness}, so "
                    f"there may be {deployment.staleness + 1}",
                )
        worker = self._codec_worker
        features = []
        for encoding in received.features:
            feature = await decoded(encoding, worker)
            self._metrics.saved_up.inc(max(feature.nbytes - len(encoding.payload), 0))
            features.append(feature)
        labels = await decoded(received.labels, worker)
        await self._batches.put(_Batch(step, deployment, tuple(features), labels, gradient_due))

    async def _compute(self) -> None:
        loop = asyncio.get_running_loop()
        while (batch := await self._batches.get()) is not None:
            if isinstance(batch, TakeCheckpoint):
                self._unlimited_room.release()
                await self._take_checkpoint(batch, functools.partial(self._checkpointed, batch.name))
                continue
            if not batch.gradient_due:
                self._unlimited_room.release()
            if batch.deployment.cut != self._session.deployment.cut:
                raise ProtocolError(f"step {batch.step} was sent at cut {batch.deployment.cut}, which has moved since")
            await self._reports.put(await self._compute_worker.run(self._train, batch, loop))
        await self._gradients.put(None)
        await self._reports.put(None)

    async def _checkpointed(self, name: pb.CheckpointName, written: bool) -> None:
        note = Checkpointed(name=name, written=written)
        with suppress(Exception):  # the stream has ended meanwhile; the edge will ask what there is
            await self._stream.write(TrainResponse(checkpointed=note))

    async def say_stopping(self) -> None:
        """Ask the edge to end its batches, to take a checkpoint and to end the stream."""
        with suppress(Exception):
            await self._stream.write(TrainResponse(stopping=pb.Stopping()))

    def _train(self, batch: _Batch, loop: asyncio.AbstractEventLoop) -> StepReport:
        """One step, on the compute thread. The edge waits for the gradient, so that leaves before the cloud's own update."""
        started = time.monotonic_ns()
        session, answers = self._session, self._session.answers
        answers.admitted(batch.step, batch.deployment.staleness)
        session.deployment = batch.deployment
        try:
            done = session.compute(batch.step, batch.features, batch.labels)
            if done.gradients is not None:
                answers.gradients.keep(batch.step, (batch.deployment, done.gradients))
                loop.call_soon_threadsafe(self._gradients.put_nowait, (batch.step, batch.deployment, done.gradients))
            seconds = done.graph_seconds + session.update(batch.step)
            if session.step_log is not None:
                session.step_log.applied(batch.step, *map(bytes_of, batch.features), bytes_of(batch.labels))
        except BaseException:
            session.spoilt = True
            raise
        report = StepReport(
            step=batch.step,
            loss=done.loss.loss,
            correct=done.loss.correct,
            compute_seconds=seconds,
            compute_start_nanoseconds=started,
            no_gradient=session.detached,
        )
        answers.reports.keep(batch.step, report)
        self._metrics.steps.inc()
        self._metrics.samples.inc(done.loss.samples)
        session.loss = done.loss.loss
        self._metrics.phase_seconds["cloud"].observe(seconds)
        return report

    async def _report(self, missing: list[StepReport]) -> None:
        for lost in missing:
            await self._stream.write(TrainResponse(report=lost))
        while (report := await self._reports.get()) is not None:
            report.downlink_bits_per_second = self._stream.link.bits_per_second or 0.0
            self._session.downlink_bits_per_second = report.downlink_bits_per_second
            await self._stream.write(TrainResponse(report=report))

    async def _send(self) -> None:
        while (item := await self._gradients.get()) is not None:
            step, deployment, gradients = item
            codec = codec_by_name(deployment.downlink_codec)
            tensors = []
            for slot, gradient in enumerate(gradients):
                if gradient is not None:
                    encoding = await encoded(gradient, codec, self._codec_worker)
                    key = TensorKey(step, Role.ROLE_ERROR_GRADIENT, deployment.cut, slot)
                    tensors.append(to_wire(encoding, key, deployment.version))
                    self._metrics.saved_down.inc(max(gradient.nbytes - len(encoding.payload), 0))
            # Once they are under way, the edge may settle the step and send the next one before we know.
            self._in_flight -= 1
            for tensor in tensors:
                await self._stream.send(tensor)
                self._session.sent_bytes += len(tensor.payload)
                self._metrics.bytes_down.inc(len(tensor.payload))
