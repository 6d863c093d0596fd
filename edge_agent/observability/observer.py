"""Keeps the figures of a run as it goes: metrics for Prometheus, totals for the summary, a time line, and news for whoever
watches."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from edge_agent.observability.metrics import EdgeMetrics
from edge_agent.observability.step_meter import Figures, StepMeter
from edge_agent.observability.timeline import Timeline
from edge_agent.training.pipeline import Pipeline
from shared.client.training_call import Stream
from shared.transport.stream.framing import WireTensor
from shared.wire.isthmus.v1.tensor_pb2 import Role
from shared.wire.isthmus.v1.trainer_pb2 import StepReport


@dataclass(slots=True)
class Progress:
    """Where a run is. Session and rates are None until they are known; loss: of the last step; accuracy: of the last
    evaluation."""

    total_steps: int
    session: str | None = None
    cut: int = 0
    steps: int = 0
    samples: int = 0
    loss: float = float("nan")
    bytes_up: int = 0
    bytes_down: int = 0
    accuracy: float | None = None
    uplink_bits_per_second: float | None = None
    downlink_bits_per_second: float | None = None
    round_trip_seconds: float | None = None


class RunObserver:
    """Implements `edge_agent.training.pipeline.Observer`."""

    def __init__(
        self,
        metrics: EdgeMetrics,
        progress: Progress,
        on_progress: Callable[[Progress], None],
        timeline: Timeline | None,
    ) -> None:
        self._metrics = metrics
        self.progress = progress
        self.meter, self.figures = StepMeter(), Figures()
        self.on_went_back: Callable[[], None] = lambda: None
        """Called when training goes on from a checkpoint, and with its deployment."""
        self._on_progress = on_progress
        self._timeline = timeline
        self._stream: Stream | None = None
        self._step_done_seconds: float | None = None
        metrics.planned_steps.set(progress.total_steps)

    def opened(self, session_id: str, pipeline: Pipeline, blocks: int) -> None:
        """The session is open; `pipeline` is what will train a model of so many blocks in it."""
        self._metrics.watch(pipeline)
        self._metrics.blocks.set(blocks)
        self.progress.session, self.progress.cut = session_id, pipeline.announced.cut
        self._on_progress(self.progress)

    def attached(self, stream: Stream) -> None:
        """Take the link's rate and the trainer's clock from this stream."""
        self._stream = stream
        self._metrics.attached.set(1)
        self._metrics.attaches.inc()

    def detached(self) -> None:
        """The stream has ended, or was lost."""
        self._stream = None
        self._metrics.attached.set(0)

    def went_back(self, step: int, cut: int) -> None:
        """Training goes on from a checkpoint."""
        self._metrics.rollbacks.inc()
        self._metrics.repeated_steps.inc(max(self.progress.steps - step, 0))
        self.progress.cut = cut
        self._begin(step)
        self.on_went_back()

    def began_anew(self) -> None:
        """Nothing of the steps so far was kept: training goes on from the first."""
        self._metrics.repeated_steps.inc(self.progress.steps)
        self._begin(0)

    def _begin(self, step: int) -> None:
        self.progress.steps = self.meter.steps = step
        self.drained()

    def checkpointed(self, pause_seconds: float) -> None:
        """A checkpoint is being written."""
        self._metrics.checkpoint_seconds.observe(pause_seconds)

    def checkpoint_shared(self) -> None:
        """Both sides have the state of now, or of a few steps ago."""
        self._metrics.checkpoint_timestamp.set_to_current_time()

    def span(self, phase: str, what: str, step: int, start_seconds: float, end_seconds: float) -> None:
        """For the time line; encoding for the meter too."""
        if what == "encode":
            self.meter.encode_seconds.add(end_seconds - start_seconds)
        if self._timeline is not None:
            self._timeline.add(phase, what, step, start_seconds, end_seconds)

    def edge_computed(self, _step: int, seconds: float) -> None:
        """T1."""
        self._metrics.phase_seconds["edge"].observe(seconds)
        self.meter.compute_seconds.add(seconds)
        self.figures.edge.add(seconds)

    def gradient_applied(self, _step: int, staleness: int) -> None:
        """How stale it was."""
        self._metrics.staleness.observe(staleness)
        self.figures.staleness = staleness

    def delivered(self, tensor: WireTensor, seconds: float, receiver_nanoseconds: int) -> None:
        """T2."""
        if tensor.role != Role.ROLE_FEATURE or self._stream is None:
            return
        self._metrics.phase_seconds["uplink"].observe(seconds)
        self.figures.uplink.add(seconds)
        arrived = self._stream.peer_clock.to_local(receiver_nanoseconds)
        self.span("uplink", "feature", tensor.step, time.monotonic() - seconds, arrived)

    def uploaded(self, payload_bytes: int, raw_bytes: int) -> None:
        """Bytes up, and what the codec spared."""
        self._metrics.bytes_up.inc(payload_bytes)
        self._metrics.saved_up.inc(max(raw_bytes - payload_bytes, 0))
        self.progress.bytes_up += payload_bytes

    def downloaded(self, tensor: WireTensor, raw_bytes: int) -> None:
        """Bytes down, and what the codec spared."""
        payload_bytes = len(tensor.payload)
        self._metrics.bytes_down.inc(payload_bytes)
        self._metrics.saved_down.inc(max(raw_bytes - payload_bytes, 0))
        self.progress.bytes_down += payload_bytes
        if self._stream is not None:
            sent, arrived = self._stream.peer_clock.to_local(tensor.sender_nanoseconds), time.monotonic()
            self.figures.downlink.add(max(arrived - sent, 0.0))
            self.span("downlink", "gradient", tensor.step, sent, arrived)

    def reported(self, report: StepReport, samples: int) -> None:
        """A step is done; T3."""
        self._metrics.phase_seconds["cloud"].observe(report.compute_seconds)
        self._metrics.steps.inc()
        self._metrics.samples.inc(samples)
        self._metrics.loss.set(report.loss)
        done_seconds = time.monotonic()
        if self._step_done_seconds is not None:
            self._metrics.step_seconds.observe(done_seconds - self._step_done_seconds)
            self.figures.step_seconds.add(done_seconds - self._step_done_seconds)
        self._step_done_seconds = done_seconds
        self.progress.steps += 1
        self.progress.samples += samples
        self.progress.loss = report.loss
        self.meter.cloud_seconds.add(report.compute_seconds)
        self.figures.cloud.add(report.compute_seconds)
        self.meter.steps, self.meter.is_flowing = self.progress.steps, True
        if self._stream is not None:
            began = self._stream.peer_clock.to_local(report.compute_start_nanoseconds)
            self.span("cloud", "forward, backward", report.step, began, began + report.compute_seconds)
            self.progress.uplink_bits_per_second = self._stream.link.bits_per_second
            self.progress.downlink_bits_per_second = report.downlink_bits_per_second or None
            self.progress.round_trip_seconds = self._stream.round_trip.seconds
            self.meter.round_trip_seconds = self.progress.round_trip_seconds
            self.meter.uplink_bits_per_second = self.progress.uplink_bits_per_second
            self.meter.downlink_bits_per_second = self.progress.downlink_bits_per_second
            self._metrics.uplink_rate.set((self.progress.uplink_bits_per_second or 0.0) / 8)
            self._metrics.downlink_rate.set(report.downlink_bits_per_second / 8)
        self._on_progress(self.progress)

    def drained(self) -> None:
        """Nothing is in flight; what comes next is no step."""
        self._step_done_seconds = None
        self.meter.is_flowing = False

    def migrated(self, cut: int, pause_seconds: float) -> None:
        """The cut was moved to `cut`."""
        self.progress.cut = cut
        self._metrics.migrations_done.inc()
        self._metrics.migration_seconds.observe(pause_seconds)

    def migration_failed(self) -> None:
        """The cut was to be moved and stayed."""
        self._metrics.migrations_failed.inc()

    def evaluated(self, accuracy: float | None) -> None:
        """An evaluation is done."""
        self.progress.accuracy = accuracy
        self._metrics.accuracy.set(accuracy or 0.0)
        self._on_progress(self.progress)
