"""The way of a batch through the edge: load, compute (P1), encode and upload (P2), download and decode (P4), apply.

Each phase runs on its own and is joined to the next by what is in flight, which admission bounds; torch and codecs run on
threads of their own. The link may be lost at any time: computing goes on as far as K allows, and on the next stream what is
missing on either side is sent again.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import structlog
from torch import Tensor

from edge_agent.data import Batch
from edge_agent.training.admission import Admission
from edge_agent.training.ends import Link, Observer, Position
from edge_agent.training.in_flight import BatchInFlight, InFlight
from edge_agent.training.prefetch import Prefetcher
from edge_agent.training.workers import Workers
from shared.client.training_call import Stream
from shared.codec import Codec, Encoded, FeedbackMode, codec_by_name, compensate, compression_error, is_lossy
from shared.concurrency.tasks import run_together
from shared.errors import IsthmusError, ProtocolError
from shared.model.spec import TensorSpec
from shared.tensor_wire import decoded, encoded, to_wire
from shared.training.device import synchronise
from shared.training.policies import BackwardPolicy
from shared.training.stage_state import bytes_of
from shared.training.step_log import StepLog
from shared.wire.isthmus.v1.tensor_pb2 import Role
from shared.wire.isthmus.v1.trainer_pb2 import Deployment, StepReport, TrainRequest, TrainResponse

_log = structlog.get_logger(__name__)
FROZEN_LIMIT = 7
"""Batches that may be ahead of the trainer's report where no gradient comes back and so no K bounds them."""


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
        staleness_changes: Mapping[int, int] | None = None,
    ) -> None:
        """staleness_changes: the steps from which on K is another, in the future, and which."""
        self._staleness_changes = dict(staleness_changes or {})
        self.policy = policy
        self.deployment = deployment
        self.feedback = feedback
        self.workers = workers
        self.observer = observer
        self.in_flight = InFlight()
        self.announced = deployment
        """What the trainer has been told last; the deployment of everything that is sent now."""
        self._run: _Run | None = None
        self.position = Position(0, 0, 0)
        self.step_log: StepLog | None = None
        """Where every applied gradient is written down, if anywhere."""
        self.on_note: Callable[[TrainResponse], None] = lambda _note: None
        """Told of messages that are neither tensors nor reports."""
        self.on_loss: Callable[[int, float], None] = lambda _step, _loss: None
        """Told the loss of every step; what it raises ends the run."""
        self.warned_of_no_gradient = False
        """Whether the log says that the cloud's blocks pass no gradient on."""
        self._followed_step = -1
        self.boundary_wanted = asyncio.Event()
        """Set while somebody waits for a moment with nothing in flight."""

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

    def follow_schedule(self, next_step: int) -> None:
        """Change K where it was planned to be another from `next_step` on, which has not started yet."""
        if next_step != self._followed_step:
            self._followed_step = next_step
            if (staleness := self._staleness_changes.get(next_step)) is not None:
                self.change(staleness=staleness)

    async def run(self, link: Link, batches: Prefetcher, first_step: int, stop_step: int) -> int:
        """Train on steps [first_step, stop_step), one batch each, until every one of them is settled on both sides.

        Returns the step to go on with: `stop_step`, or an earlier one when `drain` was called. Raises the first
        IsthmusError of any phase that a new stream does not mend.
        """
        run = self._run = _Run(self, link, batches, first_step, stop_step)
        try:
            await run_together(run.compute(), run.talk())
        finally:
            self._run = None
        self.boundary_wanted.clear()
        return run.stop_step

    def redeploy(self, deployment: Deployment) -> None:
        """Go on under a deployment that the trainer holds already; between two runs."""
        self.deployment = self.announced = deployment

    def restart(self, policy: BackwardPolicy, deployment: Deployment, step: int) -> None:
        """Go on from another state, with nothing in flight; between two runs."""
        self.policy = policy
        self.redeploy(deployment)
        self.in_flight.clear()
        self.position = Position(step, step, step)
        self._followed_step = -1
        self.boundary_wanted.clear()

    @property
    def gradients_come(self) -> bool:
        """Whether anything on the edge learns."""
        return self.policy.needs_gradients

    @property
    def unsettled(self) -> int:
        """Batches between their forward and their settling; K + 1 at most, where gradients come."""
        run = self._run
        return 0 if run is None else run.unsettled

    @property
    def waiting(self) -> dict[str, int]:
        """What waits at this moment, by queue: batches for the compute thread, features for the link, gradients."""
        run = self._run
        return {"load": 0, "upload": 0, "apply": 0} if run is None else run.waiting

    def drain(self) -> None:
        """Let the run end with the batch that starts next: what moves blocks needs both sides at one step."""
        self.boundary_wanted.set()

    @property
    def draining(self) -> bool:
        """Whether the batch that starts now shall be the last of this run."""
        return self.boundary_wanted.is_set()


@dataclass(frozen=True, slots=True)
class _Labels:
    """What goes up first of a batch: nobody has to compute it."""

    step: int
    deployment: Deployment
    tensor: Tensor


class _Run:
    """One drained stretch of steps: the queues between the phases, and the phases."""

    def __init__(self, pipeline: Pipeline, link: Link, batches: Prefetcher, first_step: int, stop_step: int) -> None:
        self._pipeline = pipeline
        self._link = link
        self._workers = pipeline.workers
        self._observer = pipeline.observer
        self._in_flight = pipeline.in_flight
        self._batches = batches
        self._first_step, self.stop_step = first_step, stop_step
        self._admission = Admission(first_step)
        pipeline.position = Position(first_step, first_step, first_step)
        # Asked once: stashing puts other weights into the blocks for the time of a forward, on the compute thread.
        self._gradients_come = pipeline.gradients_come
        self._gradients: asyncio.Queue[tuple[BatchInFlight, Tensor]] = asyncio.Queue()  # admission bounds it
        self._started: _Labels | None = None
        """Of the batch whose feature is being computed."""
        self._sending_step = first_step
        self._all_forwarded = False
        self._forwarded = asyncio.Event()
        """Set when there is more to send, or no more comes."""
        self._arrived = asyncio.Event()
        batches.on_ready = self._arrived.set

    @property
    def unsettled(self) -> int:
        """See `Pipeline.unsettled`."""
        return self._admission.unsettled

    @property
    def waiting(self) -> dict[str, int]:
        """See `Pipeline.waiting`."""
        to_send = max(self._pipeline.position.forward - self._sending_step, 0)
        return {"load": len(self._batches), "upload": to_send, "apply": self._gradients.qsize()}

    async def compute(self) -> None:
        """P1: the next batch goes first, if it may start, then a gradient that has come.

        The other way round, all K + 1 batches are settled before the next one starts, and link and cloud stand still.
        """
        while self._admission.started < self.stop_step or self._gradients_left(self._admission.settled):
            self._pipeline.follow_schedule(self._admission.started)
            if self._may_start() and not self._batches.empty:
                if self._pipeline.draining:
                    self.stop_step = self._admission.started + 1
                await self._forward(self._batches.take())
            elif not self._gradients.empty():
                await self._apply(*self._gradients.get_nowait())
            else:
                self._arrived.clear()
                await self._arrived.wait()
        self._all_forwarded = True
        self._forwarded.set()

    def _gradients_left(self, gradients: int) -> bool:
        """Whether there are more to come than those before step `gradients`."""
        return self._gradients_come and gradients < self.stop_step

    def _may_start(self) -> bool:
        limit = self._pipeline.deployment.staleness if self._gradients_come else FROZEN_LIMIT
        return self._admission.started < self.stop_step and self._admission.open(limit)

    async def _forward(self, batch: Batch) -> None:
        step, deployment = self._admission.start(), self._pipeline.deployment
        assert batch.step == step
        self._started = _Labels(step, deployment, batch.labels)
        self._forwarded.set()
        alone = deployment.staleness == 0
        started = time.monotonic()
        feature = await self._workers.compute.run(self._feature, step, batch.inputs, alone=alone)
        ended = time.monotonic()
        self._observer.span("edge", "forward", step, started, ended)
        gradient_due = self._gradients_come
        samples, parts = len(batch.labels), 1 + gradient_due
        item = BatchInFlight(step, deployment, samples, TensorSpec.of(feature), ended - started, parts)
        item.outputs, item.labels = feature, batch.labels
        self._in_flight.add(item, gradient_due=gradient_due)
        self._started = None
        self._pipeline.position.forward = step + 1
        self._forwarded.set()

    def _feature(self, step: int, inputs: Tensor, *, alone: bool) -> Tensor:
        """On the host, so that T1 ends when it is computed, and its encoding does not wait for what a GPU is given next."""
        return self._pipeline.policy.forward(step, inputs, alone=alone).to("cpu")

    async def _apply(self, batch: BatchInFlight, gradient: Tensor) -> None:
        staleness = self._admission.settle(batch.step)
        started = time.monotonic()
        await self._workers.compute.run(self._backward, batch, gradient)
        ended = time.monotonic()
        self._observer.span("edge", "backward", batch.step, started, ended)
        self._observer.edge_computed(batch.step, batch.forward_seconds + ended - started)
        self._observer.gradient_applied(batch.step, staleness)

    def _backward(self, batch: BatchInFlight, gradient: Tensor) -> None:
        arrived = gradient
        if batch.compression_error is not None:
            gradient = compensate(gradient, batch.compression_error, batch.samples, self._pipeline.feedback)
            batch.compression_error = None
        self._pipeline.policy.backward(batch.step, gradient)
        synchronise(self._pipeline.policy.device)
        if self._pipeline.step_log is not None:
            self._pipeline.step_log.applied(batch.step, bytes_of(arrived))

    async def talk(self) -> None:
        """P2 and P4, over one stream after the other, until every step is settled on both sides."""
        pipeline, send_from = self._pipeline, self._first_step
        while True:
            try:
                stream = self._link.stream
                await run_together(self._upload(stream, send_from), self._receive(stream))
                return
            except IsthmusError as failure:
                attached = await self._link.resume(failure, pipeline.position)
            pipeline.announced = attached.deployment
            self._in_flight.resume(pipeline.position.gradient)
            send_from = attached.next_step

    async def _upload(self, stream: Stream, step: int) -> None:
        """P2, from this step on: send labels while their feature is computed, and then the feature, encoded."""
        while True:
            self._sending_step = step
            while (labels := self._labels_of(step)) is None:
                if self._all_forwarded:
                    return
                await self._more_to_send()
            await self._send_labels(stream, labels)
            while step >= self._pipeline.position.forward:
                await self._more_to_send()
            batch = self._in_flight.at(step)
            encoding = await self._encoding(batch)
            await stream.send(to_wire(encoding, step, Role.ROLE_FEATURE, batch.deployment.epoch))
            self._observer.uploaded(len(encoding.payload), batch.feature.bytes)
            step += 1

    async def _more_to_send(self) -> None:
        self._forwarded.clear()
        await self._forwarded.wait()

    def _labels_of(self, step: int) -> "_Labels | None":
        """Those of a batch that was started; None when it was not."""
        if step < self._pipeline.position.forward:
            batch = self._in_flight.at(step)
            assert batch.labels is not None
            return _Labels(step, batch.deployment, batch.labels)
        return self._started

    async def _send_labels(self, stream: Stream, labels: "_Labels") -> None:
        deployment = labels.deployment
        if deployment.epoch != self._pipeline.announced.epoch:
            await stream.write(TrainRequest(deployment=deployment))
            self._pipeline.announced = deployment
        encoding = codec_by_name("raw").encode(labels.tensor)
        await stream.send(to_wire(encoding, labels.step, Role.ROLE_LABEL, deployment.epoch))
        self._observer.uploaded(len(encoding.payload), len(encoding.payload))

    async def _encoding(self, batch: BatchInFlight) -> Encoded:
        if batch.encoding is None:
            assert batch.outputs is not None
            started = time.monotonic()
            encoding, error = await self._encode(batch.deployment, batch.outputs)
            self._observer.span("codec", "encode", batch.step, started, time.monotonic())
            batch.encoding, batch.compression_error, batch.outputs = encoding, error, None
        return batch.encoding

    async def _encode(self, deployment: Deployment, feature: Tensor) -> tuple[Encoded, Tensor | None]:
        codec = codec_by_name(deployment.codec)
        feedback = self._gradients_come and self._pipeline.feedback is not FeedbackMode.OFF
        if feedback and is_lossy(codec.name):
            return await self._workers.codec.run(_encode_with_error, codec, feature)
        if deployment.staleness:
            # It waits for its gradient while others are computed. In the middle of where their activations were, it would
            # keep that memory from being used again as a whole: six features of 32 KB cost 50 MB.
            feature = await self._workers.codec.run(feature.clone)
        return await encoded(feature, codec, self._workers.codec), None

    async def _receive(self, stream: Stream) -> None:
        """P4: take gradients and reports until there is one of each for every step."""
        pipeline = self._pipeline
        while pipeline.position.report < self.stop_step or self._gradients_left(pipeline.position.gradient):
            event = await stream.receive()
            if event is None:
                raise ProtocolError("the trainer ended the stream in the middle of training")
            message, tensor = event
            if tensor is not None:
                gradient = await decoded(tensor, self._workers.codec)
                # From here to the count without a pause: a lost stream has brought a gradient or has not.
                batch = self._in_flight.answered(tensor.step)
                batch.encoding = None
                self._gradients.put_nowait((batch, gradient))
                self._arrived.set()
                pipeline.position.gradient = tensor.step + 1
                self._observer.downloaded(tensor, batch.feature.bytes)
            if message.HasField("report"):
                self._report(message.report)
                pipeline.position.report = message.report.step + 1
                message.ClearField("report")
            if message.ByteSize():
                pipeline.on_note(message)

    def _report(self, report: StepReport) -> None:
        batch = self._in_flight.answered(report.step)
        if report.step != self._pipeline.position.report:
            raise ProtocolError(
                f"the trainer reports step {report.step}; the report of step {self._pipeline.position.report} is due"
            )
        if report.no_gradient and not self._pipeline.warned_of_no_gradient:
            self._pipeline.warned_of_no_gradient = True
            _log.warning(
                "the trainer's blocks pass no gradient on, so the blocks of this device do not learn", step=report.step
            )
        self._observer.reported(report, batch.samples)
        self._pipeline.on_loss(report.step, report.loss)
        if not self._gradients_come:
            self._admission.settle(report.step)
            self._observer.edge_computed(report.step, batch.forward_seconds)
            self._arrived.set()


def _encode_with_error(codec: Codec, feature: Tensor) -> tuple[Encoded, Tensor]:
    encoding = codec.encode(feature)
    return encoding, compression_error(codec.decode(encoding), feature.cpu())
