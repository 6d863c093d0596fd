"""What the steps of one worker add to the figures of its session and of the trainer."""

from collections.abc import Callable
from dataclasses import dataclass

from shared.runtime.worker_listener import WorkerListener
from shared.telemetry.metrics import TrainingMetrics
from shared.transport.stream.framing import WireTensor
from shared.wire.isthmus.v1.link_pb2 import StepDone


@dataclass(slots=True)
class SessionStatistics:
    """The figures of a session that metrics and status show."""

    received_bytes: int = 0
    """Payload of tensors received in training."""
    sent_bytes: int = 0
    """Payload of tensors sent in training."""
    loss: float = 0.0
    """The loss of the last step; 0 before the first."""
    downlink_bits_per_second: float = 0.0
    """The measured rate of the downlink; 0 while it is not known."""


class WorkerFigures(WorkerListener):
    """Counts what one worker computes, receives ("up") and sends ("down")."""

    def __init__(
        self, worker: str, statistics: SessionStatistics, metrics: TrainingMetrics, on_step: Callable[[], None]
    ) -> None:
        """on_step: called when this worker has done a step."""
        self._worker = worker
        self._statistics = statistics
        self._metrics = metrics
        self._on_step = on_step
        self._samples: dict[int, int] = {}
        """Of each step under way, the samples of its batch."""

    def sent(self, _peer: str, payload_bytes: int, raw_bytes: int, /) -> None:
        """See `WorkerListener`."""
        self._statistics.sent_bytes += payload_bytes
        self._metrics.bytes_down.inc(payload_bytes)
        self._metrics.saved_down.inc(max(raw_bytes - payload_bytes, 0))

    def received(self, _peer: str, tensor: WireTensor, raw_bytes: int, /) -> None:
        """See `WorkerListener`."""
        self._samples[tensor.key.step] = tensor.batch_samples
        self._statistics.received_bytes += len(tensor.payload)
        self._metrics.bytes_up.inc(len(tensor.payload))
        self._metrics.saved_up.inc(max(raw_bytes - len(tensor.payload), 0))

    def step_done(self, done: StepDone, /) -> None:
        """See `WorkerListener`."""
        if done.worker != self._worker:
            return
        if done.samples:
            self._statistics.loss = done.loss
        self._metrics.steps.inc()
        self._metrics.samples.inc(self._samples.pop(done.step, 0))
        self._metrics.phase_seconds["cloud"].observe(done.compute_seconds)
        self._on_step()
