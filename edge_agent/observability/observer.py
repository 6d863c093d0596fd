"""Keeps the figures of a run as it goes: the statistics, metrics for Prometheus and a time line, and tells who watches it."""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

from edge_agent.observability.metrics import EdgeMetrics
from edge_agent.observability.timeline import Timeline
from edge_agent.observability.timeline_recorder import TimelineRecorder
from edge_agent.replaying.run_record import RunRecorder
from edge_agent.training.listener import Activity, RunListener, StepReport
from edge_agent.training.open_run import OpenRun
from edge_agent.training.statistics import Statistics, WorkerFigures
from shared.placement import Deployment, Link, Placement, held_blocks, ranges_of
from shared.transport.stream.duplex import Duplex
from shared.transport.stream.framing import WireTensor
from shared.wire.isthmus.v1.link_pb2 import StepDone
from shared.wire.isthmus.v1.tensor_pb2 import Role


class RunObserver(RunListener):
    """Listens to the runs of one agent: another begins from the first step where one has left nothing to go on from."""

    def __init__(
        self,
        statistics: Statistics,
        metrics: EdgeMetrics,
        timeline: Timeline | None,
        on_progress: Callable[[Statistics], None],
        on_rolled_back: Callable[[], None],
        record: RunRecorder | None = None,
    ) -> None:
        """on_progress: called after every step, and when something else has changed that a progress bar shows.

        on_rolled_back: called when training goes on from a checkpoint, with the deployment of that time. record: of the run.
        """
        self._record = record
        self._statistics = statistics
        self._metrics = metrics
        self._recorder = None if timeline is None else TimelineRecorder(timeline)
        self._on_progress = on_progress
        self._on_rolled_back = on_rolled_back
        self._streams: dict[str, Duplex[Any, Any]] = {}
        """By the trainer."""
        self._step_done_seconds: float | None = None
        self.activity_news = asyncio.Event()
        """Set when the activity has changed; the task that waits for it clears it."""

    def opened(self, run: OpenRun) -> None:
        """A session is open; `run` is what will train in it."""
        self._metrics.watch(run)
        self._metrics.show_run(run.session.stored.record.session_id)
        self._metrics.blocks.set(len(run.session.experiment.chain.blocks))
        self._statistics.session = run.session.stored.record.session_id
        if self._record is not None:
            self._record.begin(run.session.stored.record)
        self._statistics.deployment = run.deployer.deployment
        self._on_progress(self._statistics)

    def began_again(self) -> None:
        """Nothing of the steps so far was kept: training goes on from the first, in a new session."""
        self._metrics.repeated_steps.inc(self._statistics.steps)
        self._statistics.samples = 0
        self._begin(0)
        self.activity_changed(Activity.OPENING)

    def activity_changed(self, activity: Activity, /) -> None:
        """Note it for the status."""
        self._statistics.activity = activity
        self.activity_news.set()

    def waits(self, reasons: tuple[str, ...], /) -> None:
        """Note it for the status."""
        self._statistics.waits_because = reasons
        self.activity_news.set()

    def attached(self, peer: str, stream: Duplex[Any, Any], /) -> None:
        """Take the link's rate and the trainer's clock from this stream."""
        self._streams[peer] = stream

    def detached(self, peer: str, /) -> None:
        """There is no stream."""
        self._streams.pop(peer, None)
        if self._recorder is not None:
            self._recorder.detached(peer)

    def link_lost(self, peer: str, /) -> None:
        """Count it."""
        self._metrics.link_losses.labels(peer).inc()

    def deployment_changed(self, deployment: Deployment, /) -> None:
        """Note it for the status and metrics."""
        self._statistics.deployment = deployment

    def placed(self, placement: Placement, links: Sequence[Link], /) -> None:
        """The workers and their links, for the status and metrics."""
        statistics = self._statistics
        before, statistics.workers = statistics.workers, {}
        for name in placement.workers:
            figures = statistics.workers[name] = WorkerFigures(tuple(map(str, ranges_of(held_blocks(placement, name)))))
            if name in before:
                figures.compute, figures.done_step = before[name].compute, before[name].done_step
        statistics.link_rates = {}
        for near, far in links:
            statistics.link_rates |= {(near, far): None, (far, near): None}
        self._metrics.show_workers(statistics)
        if self._recorder is not None:
            self._recorder.placed(placement, links)
        if self._record is not None:
            self._record.placed(placement)

    def worker_done(self, done: StepDone, /) -> None:
        """Take note of the duration of the step, and of the rate of the worker's links."""
        if self._record is not None:
            self._record.done(done.step, done.worker, done.loss if done.samples else None, done.order)
        figures, rates = self._statistics.workers[done.worker], self._statistics.link_rates
        figures.done_step = done.step + 1
        figures.compute.add(done.compute_seconds)
        self._metrics.stage_seconds.series[done.worker].observe(done.compute_seconds)
        for rate in done.rates:
            if (done.worker, rate.to) in rates:
                rates[done.worker, rate.to] = rate.bits_per_second
        if self._recorder is not None:
            self._recorder.worker_done(done)

    def span(self, phase: str, what: str, step: int, start_seconds: float, end_seconds: float, /) -> None:
        """Draw it in the time line, and count encoding for the decisions."""
        if phase == "codec":
            self._statistics.encode.add(end_seconds - start_seconds)
        if self._recorder is not None:
            self._recorder.worked(phase, what, step, start_seconds, end_seconds)

    def edge_computed(self, _step: int, seconds: float, /) -> None:
        """T1."""
        self._metrics.phase_seconds["edge"].observe(seconds)
        self._statistics.edge.add(seconds)

    def gradient_applied(self, _step: int, staleness: int, /) -> None:
        """Take note of the staleness of the error gradient."""
        self._metrics.staleness.observe(staleness)
        self._statistics.staleness = staleness

    def uploaded(self, payload_bytes: int, raw_bytes: int, /) -> None:
        """Bytes up, and what the codec spared."""
        self._metrics.bytes_up.inc(payload_bytes)
        self._metrics.saved_up.inc(max(raw_bytes - payload_bytes, 0))
        self._statistics.bytes_up += payload_bytes

    def delivered(self, peer: str, tensor: WireTensor, seconds: float, receiver_nanoseconds: int, /) -> None:
        """T2, of a feature."""
        if (stream := self._streams.get(peer)) is None:
            return
        if tensor.key.role == Role.ROLE_FEATURE:
            self._metrics.phase_seconds["uplink"].observe(seconds)
            self._statistics.uplink.add(seconds)
        if self._recorder is not None:
            self._recorder.delivered(peer, stream, tensor, seconds, receiver_nanoseconds)

    def downloaded(self, peer: str, tensor: WireTensor, raw_bytes: int, /) -> None:
        """Bytes down, and what the codec spared; T4, of an error gradient."""
        payload_bytes = len(tensor.payload)
        self._metrics.bytes_down.inc(payload_bytes)
        self._metrics.saved_down.inc(max(raw_bytes - payload_bytes, 0))
        self._statistics.bytes_down += payload_bytes
        if tensor.key.role == Role.ROLE_ERROR_GRADIENT and (stream := self._streams.get(peer)) is not None:
            sent = stream.peer_clock.to_local(tensor.sender_nanoseconds)
            self._statistics.downlink.add(max(time.monotonic() - sent, 0.0))
        if self._recorder is not None:
            self._recorder.downloaded(peer, tensor)

    def step_reported(self, report: StepReport, samples: int, /) -> None:
        """A step is done; T3."""
        self._metrics.phase_seconds["cloud"].observe(report.compute_seconds)
        self._metrics.steps.inc()
        self._metrics.samples.inc(samples)
        done_seconds, statistics = time.monotonic(), self._statistics
        if self._step_done_seconds is not None:
            self._metrics.step_seconds.observe(done_seconds - self._step_done_seconds)
            statistics.step_time.add(done_seconds - self._step_done_seconds)
        self._step_done_seconds = done_seconds
        statistics.steps += 1
        statistics.samples += samples
        statistics.loss = report.loss
        statistics.is_flowing = True
        statistics.cloud.add(report.compute_seconds)
        self._note_links(report)
        self._on_progress(statistics)

    def _note_links(self, report: StepReport) -> None:
        """The slowest of this device's links."""
        if not (streams := list(self._streams.values())):
            return
        statistics = self._statistics
        rates = [rate for stream in streams if (rate := stream.link.bits_per_second) is not None]
        statistics.uplink_bits_per_second = min(rates, default=None)
        statistics.downlink_bits_per_second = report.downlink_bits_per_second or None
        trips = [seconds for stream in streams if (seconds := stream.round_trip.seconds) is not None]
        statistics.round_trip_seconds = max(trips, default=None)

    def drained(self) -> None:
        """Take note that the run is drained: the time until its next step belongs to no step."""
        self._step_done_seconds = None
        self._statistics.is_flowing = False

    def evaluated(self, accuracy: float | None, loss: float, /) -> None:
        """An evaluation is done."""
        self._statistics.accuracy, self._statistics.test_loss = accuracy, loss
        self._on_progress(self._statistics)

    def checkpoint_taken(self, pause_seconds: float, /) -> None:
        """A checkpoint is being written."""
        self._metrics.checkpoint_seconds.observe(pause_seconds)

    def checkpoint_shared(self) -> None:
        """Both sides have it."""
        self._metrics.checkpoint_timestamp.set(time.time())

    def checkpoint_replicated(self) -> None:
        """Neighbours have the trainers' parts, too."""
        self._metrics.replicated_at = time.time()

    def migrated(self, pause_seconds: float, /) -> None:
        """Blocks have moved."""
        self._metrics.migrations_done.inc()
        self._metrics.migration_seconds.observe(pause_seconds)

    def migration_failed(self) -> None:
        """Blocks were to move and stayed."""
        self._metrics.migrations_failed.inc()

    def replaced(self, trainers: Sequence[str], /) -> None:
        """Count them."""
        self._metrics.replacements.inc(len(trainers))

    def rolled_back(self, step: int, /) -> None:
        """Training goes on from a checkpoint."""
        if self._record is not None:
            self._record.rolled_back(step)
        self._metrics.rollbacks.inc()
        self._metrics.repeated_steps.inc(max(self._statistics.steps - step, 0))
        self._begin(step)
        self._on_rolled_back()

    def _begin(self, step: int) -> None:
        self._statistics.steps = step
        self.drained()
