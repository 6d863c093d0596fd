"""The way of a batch through the edge: forward (P1), encode and send (P2), receive and decode (P4), apply (P1).

The phases run side by side, joined by the window, which admits batches; torch and codecs run on threads of their own.
The link may be lost at any time: the edge computes on as far as K permits, and the next stream brings what either side
lacks. `TrainingRun` builds the pipeline, and `Recovery` gives it its streams.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

import structlog

from edge_agent.data import Batch
from edge_agent.data.prefetch import Prefetcher
from edge_agent.training.edge_compute import EdgeCompute
from edge_agent.training.listener import RunListener
from edge_agent.training.live_deployment import LiveDeployment
from edge_agent.training.recovery import Reattached, TrainerRestored
from edge_agent.training.step_boundary import StepBoundary
from edge_agent.training.window import BatchInFlight, Window
from shared.client.stream_call import Stream
from shared.codec import codec_by_name
from shared.concurrency.tasks import run_together
from shared.errors import IsthmusError, ProtocolError
from shared.tensor_wire import to_wire
from shared.transport.stream.framing import TensorKey, WireTensor
from shared.wire.isthmus.v1.tensor_pb2 import Role
from shared.wire.isthmus.v1.trainer_pb2 import StepReport, TrainRequest, TrainResponse

_log = structlog.get_logger(__name__)


class StreamSource(Protocol):
    """Gives the training stream of a session, and a new one after a loss."""

    @property
    def stream(self) -> Stream:
        """The stream that is attached. Raises UnreachableError when none is."""

    async def reattach(self, failure: IsthmusError) -> Reattached | TrainerRestored:
        """Attach again after `failure`. Raises `failure`, or what attaching fails with, when that cannot be done."""


class Pipeline:
    """Trains stretches of steps, one after the other; each begins and ends with nothing in flight."""

    def __init__(
        self,
        compute: EdgeCompute,
        window: Window,
        live: LiveDeployment,
        boundary: StepBoundary,
        listener: RunListener,
        take_message: Callable[[TrainResponse], None],
    ) -> None:
        """take_message: takes what the trainer says beside tensors and acks, reports included; what it raises ends the run."""
        self._compute = compute
        self._window = window
        self._live = live
        self._boundary = boundary
        self._listener = listener
        self._take_message = take_message
        self._batches: Prefetcher | None = None
        self._stop_step = 0
        self._all_computed = False
        self._more_to_compute = asyncio.Event()
        """Set when a batch might start or a gradient be applied."""
        self._more_to_send = asyncio.Event()
        """Set when there is more to send, or everything is computed and so nothing more comes."""
        self._warned_of_no_gradient = False

    @property
    def in_flight(self) -> int:
        """Batches between their start and their settling."""
        return self._window.in_flight

    @property
    def waiting(self) -> dict[str, int]:
        """Batches that wait, by queue: loaded and not started, forwarded and not sent, answered and not applied."""
        ready = 0 if self._batches is None else len(self._batches)
        return {"compute": ready, "send": self._window.features_to_send, "apply": self._window.gradients_to_apply}

    def wake(self) -> None:
        """Look again: a batch has become ready."""
        self._more_to_compute.set()

    async def run(self, streams: StreamSource, batches: Prefetcher, stop_step: int) -> TrainerRestored | None:
        """Train from the next step to `stop_step - 1`, until every one of them is settled on both sides.

        batches: of these steps; `wake` is called when one becomes ready. The run ends earlier where a step boundary is wanted.
        Returns TrainerRestored, with an empty window, when the trainer has restored a checkpoint that this side has to restore
        too. Raises the first IsthmusError that no new stream can mend; the window is empty then, too.
        """
        self._batches, self._stop_step, self._all_computed = batches, stop_step, False
        self._compute.begin(self._live.now.cut)
        self._window.begin(gradients_return=self._compute.gradients_return)
        try:
            await run_together(self._compute_all(batches), self._send_and_receive(streams))
        except _Interrupted as interrupted:
            self._window.abandon()
            return interrupted.by
        except BaseException:
            self._window.abandon()
            raise
        finally:
            self._batches = None
        self._boundary.clear_request()
        return None

    async def _compute_all(self, batches: Prefetcher) -> None:
        """P1: start the next batch if it may start, otherwise apply a gradient that has come.

        In the other order, all K + 1 batches would be settled before the next one starts, and link and cloud would be idle.
        """
        window, live = self._window, self._live
        while not window.all_settled(self._stop_step):
            live.follow_schedule(window.started)
            more = window.started < self._stop_step
            if more and window.may_start(live.now.staleness) and not batches.empty:
                if self._boundary.requested:
                    self._stop_step = window.started + 1
                await self._forward(batches.take())
            elif (batch := window.next_to_apply()) is not None:
                await self._apply(batch)
            else:
                self._more_to_compute.clear()
                await self._more_to_compute.wait()
        self._all_computed = True
        self._more_to_send.set()

    async def _forward(self, loaded: Batch) -> None:
        batch = self._window.start(self._live.now, loaded.labels)
        assert loaded.step == batch.step
        self._more_to_send.set()  # its labels may go while its features are computed
        started = time.monotonic()
        features = await self._compute.forward(batch.step, loaded.inputs, weights_stay=batch.deployment.staleness == 0)
        ended = time.monotonic()
        self._listener.span("edge", "forward", batch.step, started, ended)
        self._window.note_forwarded(batch, features, ended - started)
        self._more_to_send.set()

    async def _apply(self, batch: BatchInFlight) -> None:
        started = time.monotonic()
        await self._compute.backward(batch)
        ended = time.monotonic()
        staleness = self._window.settle(batch.step)
        self._listener.span("edge", "backward", batch.step, started, ended)
        self._listener.edge_computed(batch.step, batch.forward_seconds + ended - started)
        self._listener.gradient_applied(batch.step, staleness)

    async def _send_and_receive(self, streams: StreamSource) -> None:
        """P2 and P4, over one stream after the other, until all is sent and the trainer has answered every step."""
        while True:
            try:
                stream = streams.stream
                await run_together(self._send_batches(stream), self._receive(stream))
                return
            except IsthmusError as failure:
                outcome = await streams.reattach(failure)
            if isinstance(outcome, TrainerRestored):
                raise _Interrupted(outcome)

    async def _send_batches(self, stream: Stream) -> None:
        """P2: of one batch after the other, send the labels while the features are computed, and then the encoded features."""
        window = self._window
        while True:
            while (batch := window.next_to_send()) is None:
                if self._all_computed:
                    return
                await self._wait_for_more_to_send()
            await self._send_deployment_and_labels(stream, batch)
            while batch.specs is None:
                await self._wait_for_more_to_send()
            if not batch.encodings:
                await self._encode(batch)
            deployment = batch.deployment
            for slot, encoding in enumerate(batch.encodings):
                key = TensorKey(batch.step, Role.ROLE_FEATURE, deployment.cut, slot)
                await stream.send(to_wire(encoding, key, deployment.version))
                self._listener.uploaded(len(encoding.payload), batch.specs[slot].bytes)
            window.note_sent()

    async def _wait_for_more_to_send(self) -> None:
        self._more_to_send.clear()
        await self._more_to_send.wait()

    async def _send_deployment_and_labels(self, stream: Stream, batch: BatchInFlight) -> None:
        deployment = batch.deployment
        if deployment.version != self._live.in_force.version:
            await stream.write(TrainRequest(deployment=deployment))
            self._live.note_in_force(deployment)
        encoding = codec_by_name("raw").encode(batch.labels)
        await stream.send(to_wire(encoding, TensorKey(batch.step, Role.ROLE_LABEL), deployment.version))
        self._listener.uploaded(len(encoding.payload), len(encoding.payload))

    async def _encode(self, batch: BatchInFlight) -> None:
        started = time.monotonic()
        await self._compute.encode(batch, gradients_return=self._window.gradients_return)
        self._listener.span("codec", "encode", batch.step, started, time.monotonic())

    async def _receive(self, stream: Stream) -> None:
        """P4: take reports, and gradients where they return, until the trainer has answered every step."""
        while not self._window.answered(self._stop_step):
            event = await stream.receive()
            if event is None:
                raise ProtocolError("the trainer ended the stream in the middle of training")
            message, tensor = event
            if tensor is not None:
                await self._take_gradient(tensor)
            if message.HasField("report"):
                self._take_report(message.report)
            if message.ByteSize():
                self._take_message(message)

    async def _take_gradient(self, tensor: WireTensor) -> None:
        gradient = await self._compute.decode(tensor)
        # No await from here on: either all of this happens before the stream is lost, or nothing of it.
        self._window.take_gradient(tensor.key.step, tensor.key.slot, gradient)
        self._more_to_compute.set()
        self._listener.downloaded(tensor, gradient.nbytes)

    def _take_report(self, report: StepReport) -> None:
        batch = self._window.take_report(report.step)
        if report.no_gradient and not self._warned_of_no_gradient:
            self._warned_of_no_gradient = True
            _log.warning(
                "the trainer's blocks pass no gradient on, so the blocks of this device do not learn", step=report.step
            )
        self._listener.step_reported(report, batch.samples)
        if not self._window.gradients_return:
            self._window.settle(report.step)
            self._listener.edge_computed(report.step, batch.forward_seconds)
            self._more_to_compute.set()


class _Interrupted(Exception):
    """No error: ends the tasks of a stretch when the trainer has gone back to a checkpoint."""

    def __init__(self, by: TrainerRestored) -> None:
        super().__init__("both sides go back to a checkpoint")
        self.by = by
