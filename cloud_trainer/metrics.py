"""Metrics of a trainer besides those of both sides: its occupancy, and one set of series for each open session.

The series of a session are read from it at each scrape, and are gone once it is closed: there are never more of them than
the trainer takes sessions.
"""

from collections.abc import Iterable, Sequence
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from cloud_trainer.groups.trained_group import TrainedGroup
from cloud_trainer.sessions.session_registry import SessionRegistry
from shared.registry import codec_bits
from shared.telemetry.metrics import DIRECTIONS, TrainingMetrics

QUEUES = {"compute": "arrived", "send": "send"}
"""The queues, each with its key in `PlacementExecutor.waiting`."""


class TrainerMetrics(TrainingMetrics):
    """The metrics of one trainer."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry)
        self._registry: SessionRegistry | None = None
        self._sessions = Gauge("isthmus_sessions", "Open sessions.", registry=registry)
        self.failed_handshakes = Counter(
            "isthmus_failed_handshakes",
            "Connections that never came to a call: their handshake failed, or they made none.",
            registry=registry,
        )
        self._limit = Gauge("isthmus_sessions_limit", "Sessions that are taken at one time.", registry=registry)
        for queue in QUEUES:
            self.queue_items.labels(queue).set_function(partial(self.waiting, queue))

    def watch(self, sessions: SessionRegistry) -> None:
        """Read the sessions at each scrape, on the scraper's thread."""
        self._registry = sessions
        self._sessions.set_function(lambda: len(sessions))
        self._limit.set(sessions.limit)
        self.registry.register(_SessionSeries(sessions))

    def watch_groups(self, groups: Sequence[TrainedGroup]) -> None:
        """Read the groups of devices at each scrape, on the scraper's thread."""
        self.registry.register(_GroupSeries(groups))

    def waiting(self, queue: str) -> int:
        """Return the number of items that wait in a queue, of all sessions."""
        return (
            sum(session.worker.executor.waiting[QUEUES[queue]] for session in self._registry.built)
            if self._registry is not None
            else 0
        )


class _SessionSeries(Collector):
    def __init__(self, sessions: SessionRegistry) -> None:
        self._sessions = sessions

    def collect(self) -> Iterable[Metric]:
        """One family a figure, one series an open session."""
        labels, by_direction = ["session"], ["session", "direction"]
        info = GaugeMetricFamily(
            "isthmus_session_info", "1, with the run that the session is part of.", labels=["session", "run", "worker"]
        )
        attached = GaugeMetricFamily("isthmus_session_attached", "1 while the session's edge trains.", labels=labels)
        steps = CounterMetricFamily("isthmus_session_steps", "Steps of the session.", labels=labels)
        payload = CounterMetricFamily(
            "isthmus_session_payload_bytes",
            "Payload bytes of the session's tensors, by direction.",
            labels=by_direction,
        )
        loss = GaugeMetricFamily(
            "isthmus_session_loss", "Mean training loss of the session's last step.", labels=labels
        )
        held = GaugeMetricFamily(
            "isthmus_session_edge_blocks", "Blocks that the session's edge runs or owns.", labels=labels
        )
        limit = GaugeMetricFamily("isthmus_session_staleness_limit_steps", "K of the session.", labels=labels)
        bits = GaugeMetricFamily(
            "isthmus_session_codec_bit_width",
            "Bits that an element has on the link, by direction.",
            labels=by_direction,
        )
        rate = GaugeMetricFamily(
            "isthmus_session_link_bytes_per_second",
            "Rate that a link was measured to carry, from this worker to another one.",
            labels=["session", "link"],
        )
        missing = GaugeMetricFamily(
            "isthmus_session_link_missing",
            "1 for each worker that this trainer dials for the session and has no link to.",
            labels=["session", "worker"],
        )
        for session in self._sessions.built:
            for worker in session.links.missing:
                missing.add_metric([session.id, worker], 1)
            name, deployment = [session.id], session.worker.deployment
            info.add_metric([session.id, session.run_id, session.worker.name], 1)
            attached.add_metric(name, session.attachment.attached)
            steps.add_metric(name, session.worker.next_step)
            if session.figures.loss is not None:
                loss.add_metric(name, session.figures.loss)
            held.add_metric(name, deployment.edge_blocks)
            limit.add_metric(name, deployment.staleness)
            for peer, bits_per_second in session.worker.link_rates.items():
                if bits_per_second is not None:
                    rate.add_metric([session.id, f"{session.worker.name}>{peer}"], bits_per_second / 8)
            codecs, counted = (
                (deployment.codec, deployment.downlink_codec),
                (session.figures.bytes_up, session.figures.bytes_down),
            )
            for direction, codec, count in zip(DIRECTIONS, codecs, counted, strict=True):
                bits.add_metric([session.id, direction], codec_bits(codec))
                payload.add_metric([session.id, direction], count)
        return info, attached, steps, payload, loss, held, limit, bits, rate, missing


class _GroupSeries(Collector):
    def __init__(self, groups: Sequence[TrainedGroup]) -> None:
        self._groups = groups

    def collect(self) -> Iterable[Metric]:
        """One family a figure, one series a group, or one a rank."""
        step = GaugeMetricFamily("isthmus_group_step", "The step that a group is at.", labels=["group"])
        members = GaugeMetricFamily(
            "isthmus_group_members", "Members that take part in the step of a group.", labels=["group"]
        )
        linked = GaugeMetricFamily(
            "isthmus_group_linked", "1 while the member of a rank is linked.", labels=["group", "rank"]
        )
        left_out = CounterMetricFamily(
            "isthmus_group_left_out",
            "Updates of blocks or of their slices without the gradient of a rank.",
            labels=["group", "rank"],
        )
        too_late = CounterMetricFamily(
            "isthmus_group_late",
            "Gradients of blocks or of their slices that came too late to count.",
            labels=["group", "rank"],
        )
        residuals = CounterMetricFamily(
            "isthmus_group_residuals_lost",
            "Times that a rank began again without what its codec had left of its gradients.",
            labels=["group", "rank"],
        )
        waited = CounterMetricFamily(
            "isthmus_group_waited_seconds",
            "Seconds from a rank's last gradient in a step to the update; the rank with the least holds up the others.",
            labels=["group", "rank"],
        )
        awaited = GaugeMetricFamily(
            "isthmus_group_awaited_seconds",
            "Seconds for which the step of a group has waited for a rank, once that is longer than steps take; 0 before.",
            labels=["group", "rank"],
        )
        for group in self._groups:
            step.add_metric([group.config.name], group.step)
            members.add_metric([group.config.name], len(group.members))
            attached, late = group.seats.attached, group.late
            for rank in group.config.ranks:
                of_rank = [group.config.name, str(rank)]
                linked.add_metric(of_rank, rank in attached)
                awaited.add_metric(of_rank, late.get(rank, 0.0))
                left_out.add_metric(of_rank, group.figures.left_out[rank])
                too_late.add_metric(of_rank, group.figures.late[rank])
                residuals.add_metric(of_rank, group.figures.residuals_lost[rank])
                waited.add_metric(of_rank, group.figures.waited.get(rank, 0.0))
        return step, members, linked, awaited, left_out, too_late, residuals, waited
