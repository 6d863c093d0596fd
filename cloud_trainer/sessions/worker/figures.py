"""The steps of one worker, counted in the figures of its session and of the trainer."""

from collections.abc import Callable
from dataclasses import dataclass

from shared.placement import Placement
from shared.runtime.worker_listener import WorkerListener
from shared.telemetry.metrics import TrainingMetrics
from shared.transport.stream.framing import WireTensor
from shared.wire.isthmus.v1.link_pb2 import StepDone
from shared.wire.isthmus.v1.tensor_pb2 import Role


@dataclass(slots=True)
class SessionStatistics:
    """The figures of a session that metrics and status show."""

    received_bytes: int = 0
    """Payload of tensors received in training, in bytes."""
    sent_bytes: int = 0
    """Payload of tensors sent in training, in bytes."""
    bytes_up: int = 0
    """Share of both that went up, away from the edge."""
    bytes_down: int = 0
    """Share of both that went down."""
    loss: float | None = None
    """Loss of the last step; None before the first, and if another worker computes it."""


class WorkerFigures(WorkerListener):
    """The counter of one worker's steps and crossings: up, to workers farther from the edge, and down."""

    def __init__(
        self, worker: str, statistics: SessionStatistics, metrics: TrainingMetrics, on_step: Callable[[], None]
    ) -> None:
        """on_step: called when this worker has done a step."""
        self._worker = worker
        self._statistics = statistics
        self._metrics = metrics
        self._on_step = on_step
        self._samples: dict[int, int] = {}
        """Samples of each step under way."""
        self._farther: frozenset[str] = frozenset()
        """Workers that are farther from the edge than this one."""

    def placed(self, placement: Placement) -> None:
        """Count crossings under this placement from now on."""
        self._farther = frozenset(placement.workers[placement.workers.index(self._worker) + 1 :])

    def sent(self, peer: str, payload_bytes: int, raw_bytes: int, /) -> None:
        """Count sent bytes as `WorkerListener` says."""
        self._statistics.sent_bytes += payload_bytes
        self._count(payload_bytes, raw_bytes, up=peer in self._farther)

    def received(self, peer: str, tensor: WireTensor, raw_bytes: int, /) -> None:
        """Count received bytes as `WorkerListener` says."""
        payload_bytes = len(tensor.payload)
        self._samples[tensor.key.step] = tensor.batch_samples
        self._statistics.received_bytes += payload_bytes
        self._count(payload_bytes, raw_bytes, up=peer not in self._farther)

    def delivered(self, peer: str, tensor: WireTensor, seconds: float, _receiver_nanoseconds: int, /) -> None:
        """Time a tensor that has arrived at a peer: T2 of a feature that went up, as on the edge, and T4 of one that
        went down."""
        if peer not in self._farther:
            self._metrics.phase_seconds["downlink"].observe(seconds)
        elif tensor.key.role == Role.ROLE_FEATURE:
            self._metrics.phase_seconds["uplink"].observe(seconds)

    def step_done(self, done: StepDone, /) -> None:
        """Count a step as `WorkerListener` says."""
        if done.worker != self._worker:
            return
        if done.samples:
            self._statistics.loss = done.loss
        self._metrics.steps.inc()
        self._metrics.samples.inc(self._samples.pop(done.step, 0))
        self._metrics.phase_seconds["cloud"].observe(done.compute_seconds)
        self._on_step()

    def _count(self, payload_bytes: int, raw_bytes: int, *, up: bool) -> None:
        saved_bytes = max(raw_bytes - payload_bytes, 0)
        if up:
            self._statistics.bytes_up += payload_bytes
            self._metrics.bytes_up.inc(payload_bytes)
            self._metrics.saved_up.inc(saved_bytes)
        else:
            self._statistics.bytes_down += payload_bytes
            self._metrics.bytes_down.inc(payload_bytes)
            self._metrics.saved_down.inc(saved_bytes)
