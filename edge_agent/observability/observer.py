"""Keeps the figures of a run as it goes, in its statistics and in the metrics for Prometheus: a reader of its events."""

import time
from pathlib import Path
from typing import Any

from edge_agent.observability.history_keeper import HistoryKeeper
from edge_agent.observability.metrics import EdgeMetrics
from edge_agent.observability.overlap import Overlap
from edge_agent.sessions.kills import IS_BUSY, STEPS
from edge_agent.training.events import (
    Activity,
    ActivityChanged,
    BeganAgain,
    CheckpointShared,
    CheckpointTaken,
    Drained,
    Evaluated,
    HandedOver,
    LinkDown,
    LinkLost,
    LinkUp,
    Migrated,
    MigrationFailed,
    Placed,
    Progressed,
    Relayed,
    Replaced,
    RolledBack,
    SessionOpened,
    StepFinished,
    StoodIn,
)
from edge_agent.training.statistics import Statistics, WorkerFigures
from shared.events import Events
from shared.events.calls import CallFailed, TrainersAwaited
from shared.events.worker import Delivered, LoadEncoded, Received, Sent, StepComputed, WorkerDone
from shared.placement import AGENT, held_blocks, ranges_of
from shared.transport.stream.duplex import Duplex
from shared.wire.isthmus.v1.tensor_pb2 import Role

_EXCHANGED = (Role.ROLE_WEIGHT_GRADIENT, Role.ROLE_WEIGHTS)
"""Roles of what workers exchange of the blocks that they share."""
_TIMED_DOWN = (Role.ROLE_ERROR_GRADIENT, *_EXCHANGED)
"""Roles of what comes whose time on the link is told."""


class RunObserver:
    """Reads the events of one agent: another session begins from the first step where one has left nothing to go on from."""

    def __init__(
        self, statistics: Statistics, metrics: EdgeMetrics, events: Events, directory: Path | None = None
    ) -> None:
        """directory: of the results, where the history is written; None writes none."""
        self._statistics = statistics
        self._history = HistoryKeeper(statistics, directory, events)
        self._metrics = metrics
        self._emit = events.emit
        self._streams: dict[str, Duplex[Any, Any]] = {}
        """By the trainer."""
        self._lost: set[str] = set()
        """Trainers whose link was lost and is not up again."""
        self._step_done_seconds: float | None = None
        self._computed_seconds: float | None = None
        """Seconds that this device has computed for its newest step, where it shares blocks."""
        self._shares_blocks = False
        self._skipped: dict[int, int] = {}
        """Samples that could not be read, by the step, of steps that have any."""
        self._overlap = Overlap()
        subscribe = events.subscribe
        subscribe(SessionOpened, self._open)
        subscribe(BeganAgain, self._begin_again)
        subscribe(RolledBack, self._roll_back)
        subscribe(ActivityChanged, lambda event: self._be(event.activity))
        subscribe(TrainersAwaited, self._await_trainers)
        subscribe(CallFailed, lambda event: metrics.failed(event.code))
        subscribe(LinkUp, self._note_link)
        subscribe(LinkDown, lambda event: self._streams.pop(event.peer, None))
        subscribe(LinkLost, self._lose_link)
        subscribe(Placed, self._place)
        subscribe(LoadEncoded, lambda event: statistics.encode.observe(event.end_seconds - event.start_seconds))
        subscribe(Sent, self._count_sent)
        subscribe(Delivered, self._note_delivered)
        subscribe(Received, self._count_received)
        subscribe(StepComputed, self._note_own_step)
        subscribe(WorkerDone, self._note_worker)
        subscribe(StepFinished, self._note_step)
        subscribe(Drained, lambda _event: self._drain())
        subscribe(Evaluated, self._note_evaluation)
        subscribe(CheckpointTaken, lambda event: metrics.checkpoint_seconds.observe(event.pause_seconds))
        subscribe(CheckpointShared, self._note_checkpoint)
        subscribe(Migrated, lambda event: metrics.note_migration(event.pause_seconds))
        subscribe(HandedOver, lambda event: metrics.note_handover(event.by, event.pause_seconds))
        subscribe(MigrationFailed, lambda _event: metrics.migrations_failed.inc())
        subscribe(Relayed, lambda event: metrics.relayed.set(len(event.through)))
        subscribe(Replaced, lambda event: metrics.replacements.inc(len(event.trainers)))
        subscribe(StoodIn, lambda event: metrics.stand_ins.inc(len(event.by)))

    def _open(self, event: SessionOpened) -> None:
        run, session_id = event.run, event.run.session.stored.record.session_id
        self._metrics.watch(run)
        self._metrics.show_run(session_id)
        if (skipping := run.session.experiment.loader.skipping) is not None:
            self._skipped, self._statistics.skipped = skipping.by_step, self._statistics.skipped or 0
        names = [metric.shown_as for metric in run.session.experiment.recipe.metrics]
        self._metrics.show_metrics(names, self._statistics)
        self._metrics.blocks.set(len(run.session.experiment.chain.blocks))
        self._statistics.session = session_id
        self._statistics.deployment = run.deployer.deployment
        self._emit(Progressed(self._statistics))

    def _begin_again(self, _event: BeganAgain) -> None:
        self._statistics.samples, self._statistics.skipped = 0, None
        self._statistics.go_back({})
        self._go_back(0)
        self._be(Activity.OPENING)

    def _roll_back(self, event: RolledBack) -> None:
        self._metrics.rollbacks.inc()
        self._go_back(event.step)

    def _go_back(self, step: int) -> None:
        self._metrics.repeated_steps.inc(max(self._statistics.steps - step, 0))
        self._statistics.steps = self._statistics.moments[STEPS] = step
        self._drain()

    def _drain(self) -> None:
        """Count no time until the next step: it belongs to no step."""
        self._step_done_seconds = None
        self._statistics.is_flowing = False

    def _be(self, activity: Activity) -> None:
        self._statistics.activity = activity
        self._note_busy()

    def _await_trainers(self, event: TrainersAwaited) -> None:
        self._statistics.waits_because = event.reasons
        self._note_busy()

    def _note_busy(self) -> None:
        statistics = self._statistics
        computes = statistics.activity in (Activity.TRAINING, Activity.EVALUATING)
        statistics.moments[IS_BUSY] = computes and not statistics.waits_because

    def _note_link(self, event: LinkUp) -> None:
        self._streams[event.peer] = event.stream
        self._lost.discard(event.peer)

    def _lose_link(self, event: LinkLost) -> None:
        """Steps stand still until the link is up again, and what it carried is not what it carries."""
        self._metrics.link_losses.labels(event.peer).inc()
        self._lost.add(event.peer)
        statistics = self._statistics
        statistics.is_flowing = False
        for hop in ((AGENT, event.peer), (event.peer, AGENT)):
            if hop in statistics.link_rates:
                statistics.link_rates[hop] = None
            statistics.link_trips.pop(hop, None)

    def _place(self, event: Placed) -> None:
        statistics = self._statistics
        statistics.deployment = event.deployment
        before, statistics.workers = statistics.workers, {}
        for name in event.placement.workers:
            blocks = tuple(map(str, ranges_of(held_blocks(event.placement, name))))
            tiles = [tile for tile in event.placement.tiles if tile.worker == name]
            run = {block for tile in tiles for block in range(tile.first, tile.stop)}
            samples = max((tile.rows.count for tile in tiles), default=0)
            figures = statistics.workers[name] = WorkerFigures(blocks, len(run), samples)
            if name in before:
                figures.compute, figures.done_step = before[name].compute, before[name].done_step
        statistics.link_rates, statistics.link_trips = {}, {}
        self._shares_blocks = bool(event.placement.shared_blocks)
        self._lost.clear()  # all links are dialled for it
        for near, far in event.links:
            statistics.link_rates |= {(near, far): None, (far, near): None}
        self._metrics.show_workers(statistics)

    def _count_sent(self, event: Sent) -> None:
        self._metrics.bytes_up.value += event.payload_bytes
        self._metrics.saved_up.value += max(event.raw_bytes - event.payload_bytes, 0)
        self._statistics.bytes_up += event.payload_bytes

    def _note_delivered(self, event: Delivered) -> None:
        """T2, of a feature; what is exchanged of shared blocks."""
        key, sharing = event.tensor.key, self._metrics.sharing
        if key.role in _EXCHANGED:
            sharing.exchange_seconds.observe(event.seconds)
            done_seconds = time.monotonic()
            self._overlap.carry(done_seconds - event.seconds, done_seconds)
            sharing.exchange_bytes["up"].value += len(event.tensor.payload)
        if key.role == Role.ROLE_FEATURE:
            self._statistics.uplink.observe(event.seconds)
            if key.block == 0:
                sharing.inputs_sent.value += 1

    def _count_received(self, event: Received) -> None:
        """Bytes down; T4, of an error gradient."""
        tensor, payload_bytes = event.tensor, len(event.tensor.payload)
        self._metrics.bytes_down.value += payload_bytes
        self._metrics.saved_down.value += max(event.raw_bytes - payload_bytes, 0)
        self._statistics.bytes_down += payload_bytes
        if tensor.key.role in _EXCHANGED:
            self._metrics.sharing.exchange_bytes["down"].value += payload_bytes
        if tensor.key.role in _TIMED_DOWN and (stream := self._streams.get(event.peer)) is not None:
            sent, arrived = stream.peer_clock.to_local(tensor.sender_nanoseconds), time.monotonic()
            if tensor.key.role == Role.ROLE_ERROR_GRADIENT:
                self._statistics.downlink.observe(max(arrived - sent, 0.0))
            else:
                self._overlap.carry(sent, arrived)

    def _note_own_step(self, event: StepComputed) -> None:
        """T1."""
        self._statistics.edge.observe(event.compute_seconds)
        self._computed_seconds = event.compute_seconds if self._shares_blocks else None
        if event.staleness is not None:
            self._metrics.staleness.observe(event.staleness)
            self._statistics.staleness = event.staleness

    def _note_worker(self, event: WorkerDone) -> None:
        report, rates, trips = event.report, self._statistics.link_rates, self._statistics.link_trips
        figures = self._statistics.workers[report.worker]
        figures.done_step = report.step + 1
        self._statistics.stood_still |= report.links_lost > figures.links_lost
        figures.links_lost = report.links_lost  # fewer than before where the worker has begun again
        figures.compute.observe(report.compute_seconds)
        for rate in report.rates:
            if (report.worker, rate.to) in rates:
                rates[report.worker, rate.to] = rate.bits_per_second
                if rate.HasField("round_trip_seconds"):
                    near, far = sorted((report.worker, rate.to), key=list(self._statistics.workers).index)
                    trips[near, far] = rate.round_trip_seconds

    def _note_step(self, event: StepFinished) -> None:
        """T3, and the time since the step before."""
        self._metrics.steps.value += 1
        self._metrics.samples.value += event.samples
        self._history.note_step(event.step, event.loss, event.samples)
        done_seconds, statistics = time.monotonic(), self._statistics
        if self._step_done_seconds is None:
            self._overlap.forget()
        else:
            step_seconds = done_seconds - self._step_done_seconds
            statistics.step_time.observe(step_seconds)
            if self._computed_seconds is not None:
                exposed_seconds = max(step_seconds - self._computed_seconds, 0.0)
                self._metrics.sharing.exposed_seconds.observe(exposed_seconds)
                if (overlap := self._overlap.end_step(exposed_seconds)) is not None:
                    self._metrics.sharing.overlap.set(overlap)
        self._step_done_seconds = done_seconds
        statistics.steps += 1
        statistics.moments[STEPS] = statistics.steps
        statistics.samples += event.samples
        if self._skipped:
            statistics.skipped = (statistics.skipped or 0) + self._skipped.pop(event.step, 0)
        statistics.loss = event.loss
        statistics.loss_sum += event.loss
        statistics.losses += 1
        statistics.loss_scale, statistics.skipped_updates = event.loss_scale, event.skipped_updates
        statistics.is_flowing = not self._lost
        statistics.cloud.observe(event.compute_seconds)
        if statistics.steps == self._history.next_step:
            self._history.end_epoch()
        self._note_rates(event)
        self._emit(Progressed(statistics))

    def _note_rates(self, event: StepFinished) -> None:
        """The slowest of this device's links."""
        if not (streams := list(self._streams.values())):
            return
        statistics = self._statistics
        rates, trips = list[float](), list[float]()
        for stream in streams:
            if (rate := stream.estimate.rate.bits_per_second) is not None:
                rates.append(rate)
            if (seconds := stream.estimate.round_trip.seconds) is not None:
                trips.append(seconds)
        statistics.uplink_bits_per_second = min(rates, default=None)
        statistics.downlink_bits_per_second = event.downlink_bits_per_second or None
        statistics.round_trip_seconds = max(trips, default=None)

    def _note_evaluation(self, event: Evaluated) -> None:
        self._statistics.accuracy, self._statistics.test_loss = event.accuracy, event.loss
        self._statistics.metrics = event.metrics
        self._emit(Progressed(self._statistics))

    def _note_checkpoint(self, event: CheckpointShared) -> None:
        self._metrics.checkpoint_timestamp.set(time.time())
        if event.is_replicated:
            self._metrics.replicated_at = time.time()
