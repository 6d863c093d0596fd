"""Keeps the figures of a run as it goes: metrics for Prometheus, totals for the summary, a time line, and news for whoever
watches."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from edge_agent.client import Stream
from edge_agent.timeline import Timeline
from shared.telemetry.metrics import TrainingMetrics
from shared.transport.framing import WireTensor
from shared.wire.isthmus.v1.tensor_pb2 import Role
from shared.wire.isthmus.v1.trainer_pb2 import StepReport


@dataclass(slots=True)
class Progress:
    """Where a run is. loss: of the last step. accuracy: of the last evaluation. Rates are None until they are measured."""

    total_steps: int
    steps: int = 0
    samples: int = 0
    loss: float = float("nan")
    bytes_up: int = 0
    bytes_down: int = 0
    accuracy: float | None = None
    uplink_bits_per_second: float | None = None
    downlink_bits_per_second: float | None = None


class RunObserver:
    """Implements `edge_agent.pipeline.Observer`."""

    def __init__(
        self,
        metrics: TrainingMetrics,
        progress: Progress,
        on_progress: Callable[[Progress], None],
        timeline: Timeline | None,
    ) -> None:
        self._metrics = metrics
        self.progress = progress
        self._on_progress = on_progress
        self._timeline = timeline
        self._stream: Stream | None = None

    def watch(self, stream: Stream) -> None:
        """Take the link's rate and the trainer's clock from this stream."""
        self._stream = stream

    def span(self, module: str, what: str, step: int, start_seconds: float, end_seconds: float) -> None:
        """For the time line."""
        if self._timeline is not None:
            self._timeline.add(module, what, step, start_seconds, end_seconds)

    def edge_computed(self, _step: int, seconds: float) -> None:
        """T1."""
        self._metrics.module_seconds["edge"].observe(seconds)

    def gradient_applied(self, _step: int, staleness: int) -> None:
        """How stale it was."""
        self._metrics.staleness.observe(staleness)

    def delivered(self, tensor: WireTensor, seconds: float, receiver_nanoseconds: int) -> None:
        """T2."""
        if tensor.role != Role.ROLE_FEATURE or self._stream is None:
            return
        self._metrics.module_seconds["uplink"].observe(seconds)
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
            sent = self._stream.peer_clock.to_local(tensor.sender_nanoseconds)
            self.span("downlink", "gradient", tensor.step, sent, time.monotonic())

    def reported(self, report: StepReport, samples: int) -> None:
        """A step is done; T3."""
        self._metrics.module_seconds["cloud"].observe(report.compute_seconds)
        self._metrics.steps.inc()
        self._metrics.samples.inc(samples)
        self._metrics.loss.set(report.loss)
        self.progress.steps += 1
        self.progress.samples += samples
        self.progress.loss = report.loss
        if self._stream is not None:
            began = self._stream.peer_clock.to_local(report.compute_start_nanoseconds)
            self.span("cloud", "forward, backward", report.step, began, began + report.compute_seconds)
            self.progress.uplink_bits_per_second = self._stream.link.bits_per_second
            self.progress.downlink_bits_per_second = report.downlink_bits_per_second or None
            self._metrics.uplink_rate.set(self.progress.uplink_bits_per_second or 0.0)
            self._metrics.downlink_rate.set(report.downlink_bits_per_second)
        self._on_progress(self.progress)

    def migrated(self, pause_seconds: float) -> None:
        """The cut was moved."""
        self._metrics.migrations_done.inc()
        self._metrics.migration_seconds.observe(pause_seconds)

    def migration_failed(self) -> None:
        """The cut was to be moved and stayed."""
        self._metrics.migrations_failed.inc()

    def evaluated(self, accuracy: float | None) -> None:
        """An evaluation is done."""
        self.progress.accuracy = accuracy
        self._on_progress(self.progress)
