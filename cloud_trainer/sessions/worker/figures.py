"""The figures of a session, which its worker's steps and crossings add to, beside those of the trainer."""

from shared.events import Events
from shared.events.worker import Delivered, Received, Sent, WorkerDone
from shared.placement import Placement
from shared.telemetry.metrics import TrainingMetrics
from shared.wire.isthmus.v1.tensor_pb2 import Role


class SessionFigures:
    """The figures of a session that metrics and status show, counted as its worker's steps and crossings happen.

    Crossings go up, to workers farther from the edge, or down.
    """

    def __init__(self, worker: str, metrics: TrainingMetrics, events: Events) -> None:
        """metrics: of the trainer, which count the same. events: of the worker."""
        self.received_bytes = 0
        """Payload of tensors received in training, in bytes."""
        self.sent_bytes = 0
        """Payload of tensors sent in training, in bytes."""
        self.bytes_up = 0
        """Share of both that went up, away from the edge."""
        self.bytes_down = 0
        """Share of both that went down."""
        self.loss: float | None = None
        """Loss of the last step; None before the first, and if another worker computes it."""
        self._worker = worker
        self._metrics = metrics
        self._samples: dict[int, int] = {}
        """Samples of each step under way."""
        self._farther: frozenset[str] = frozenset()
        """Workers that are farther from the edge than this one."""
        events.subscribe(Sent, self._count_sent)
        events.subscribe(Received, self._count_received)
        events.subscribe(Delivered, self._time_delivery)
        events.subscribe(WorkerDone, self._count_step)

    def placed(self, placement: Placement) -> None:
        """Count crossings under this placement from now on."""
        self._farther = frozenset(placement.workers[placement.workers.index(self._worker) + 1 :])

    def _count_sent(self, event: Sent) -> None:
        self.sent_bytes += event.payload_bytes
        self._count(event.payload_bytes, event.raw_bytes, up=event.peer in self._farther)

    def _count_received(self, event: Received) -> None:
        tensor, payload_bytes = event.tensor, len(event.tensor.payload)
        self._samples[tensor.key.step] = tensor.batch_samples
        self.received_bytes += payload_bytes
        self._count(payload_bytes, event.raw_bytes, up=event.peer not in self._farther)

    def _time_delivery(self, event: Delivered) -> None:
        """Time a tensor that has arrived at a peer: T2 of a feature that went up, as on the edge, and T4 of one that
        went down."""
        if event.peer not in self._farther:
            self._metrics.phase_seconds["downlink"].observe(event.seconds)
        elif event.tensor.key.role == Role.ROLE_FEATURE:
            self._metrics.phase_seconds["uplink"].observe(event.seconds)

    def _count_step(self, event: WorkerDone) -> None:
        done = event.report
        if done.worker != self._worker:
            return
        if done.samples:
            self.loss = done.loss
        self._metrics.steps.value += 1
        self._metrics.samples.value += self._samples.pop(done.step, 0)
        self._metrics.phase_seconds["cloud"].observe(done.compute_seconds)

    def _count(self, payload_bytes: int, raw_bytes: int, *, up: bool) -> None:
        saved_bytes = max(raw_bytes - payload_bytes, 0)
        if up:
            self.bytes_up += payload_bytes
            self._metrics.bytes_up.value += payload_bytes
            self._metrics.saved_up.value += saved_bytes
        else:
            self.bytes_down += payload_bytes
            self._metrics.bytes_down.value += payload_bytes
            self._metrics.saved_down.value += saved_bytes
