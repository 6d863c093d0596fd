"""Metrics of an edge besides those of both sides. At a scrape, gauges are read from the place that keeps the figure."""

import time
from collections.abc import Iterable
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from edge_agent.observability.known_gauge import KnownGauge
from edge_agent.planning import Reason
from edge_agent.training.choosers import Chooser
from edge_agent.training.statistics import Statistics
from edge_agent.training.training_run import TrainingRun
from shared.placement import AGENT
from shared.registry import codec_bits
from shared.telemetry.metrics import DIRECTIONS, TrainingMetrics
from shared.telemetry.step_series import SECONDS_BUCKETS, Distribution, Distributions, Totals

STALENESS_BUCKETS = (0, 1, 2, 3, 4, 5, 6, 8, 12, 16, 32, 64)
SCHEDULING_BUCKETS = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3)
QUEUES = ("compute", "send", "apply")


class EngineMetrics:
    """Predictions of the decision engine beside the measurements, so that its error shows."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.decisions = Counter(
            "isthmus_decisions",
            "Changes that the engine decided because of a link, a device, a pin, or a worker that is back.",
            ["reason"],
            registry=registry,
        )
        for reason in Reason:
            self.decisions.labels(reason)
        self.prediction_ratio = KnownGauge(
            "isthmus_prediction_ratio",
            "Seconds that a worker took in its last steps over those that were predicted.",
            registry,
            ["worker"],
        )
        self.measuring_seconds = Counter(
            "isthmus_measuring_seconds",
            "Seconds that training waited for the engine's own measuring.",
            registry=registry,
        )
        self.step_seconds = KnownGauge(
            "isthmus_engine_step_seconds",
            "Seconds per step with today's deployment: predicted when it was chosen, modelled for the rates since, measured.",
            registry,
            ["kind"],
        )


class CandidateMetrics:
    """Trainers among which the run chooses, and the cost of knowing them."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.probe_bytes = Totals(
            "isthmus_probe_bytes", "Bytes of probes of candidates and of their links, both ways.", registry
        ).only
        self.step_seconds = KnownGauge(
            "isthmus_candidate_step_seconds",
            "Seconds that a step would take with a candidate now, the device alone among them.",
            registry,
            ["trainer"],
        )


class SharingMetrics:
    """Batches that workers divide, and the blocks that they share for it."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.worker_samples = KnownGauge(
            "isthmus_worker_samples", "Samples of a batch that a worker computes on.", registry, ["worker"]
        )
        self.worker_blocks = KnownGauge(
            "isthmus_worker_blocks", "Blocks that a worker computes with.", registry, ["worker"]
        )
        self.exchange_seconds = Distribution()
        Distributions(
            "isthmus_exchange_seconds",
            "Seconds in which the edge sent the weights, or the gradient, of a shared block, to the acknowledgement.",
            registry,
            self.exchange_seconds,
        )
        self.exchange_bytes = Totals(
            "isthmus_exchange_bytes",
            "Payload bytes of weights of shared blocks and of their gradients, by direction.",
            registry,
            "direction",
            DIRECTIONS,
        ).series
        self.scheduling_seconds = Distribution(SCHEDULING_BUCKETS)
        Distributions(
            "isthmus_scheduling_seconds",
            "Seconds in which a group's member made its schedule again, beside its steps.",
            registry,
            self.scheduling_seconds,
        )
        self.exposed_seconds = Distribution()
        Distributions(
            "isthmus_exposed_seconds",
            "Seconds of a step in which the edge computed nothing, where it shares blocks.",
            registry,
            self.exposed_seconds,
        )
        self.overlap = KnownGauge(
            "isthmus_overlap_ratio",
            "Part of the seconds in which links carried shared blocks that the newest step did not wait for.",
            registry,
        )
        self.inputs_sent = Totals(
            "isthmus_inputs_sent", "Tensors of inputs that the edge sent to trainers.", registry
        ).only

    def show_workers(self, statistics: Statistics) -> None:
        """Have series of the workers that there are now, and of no other."""
        for gauge in (self.worker_samples, self.worker_blocks):
            gauge.clear()
        for name, figures in statistics.workers.items():
            self.worker_samples.set(figures.samples, name)
            self.worker_blocks.set(figures.blocks_run, name)


class EdgeMetrics(TrainingMetrics):
    """The metrics of one run."""

    def __init__(self, registry: CollectorRegistry, statistics: Statistics) -> None:
        # T4 is counted where a transfer begins, which is at trainers.
        super().__init__(registry, {"edge": statistics.edge, "uplink": statistics.uplink, "cloud": statistics.cloud})
        _show(statistics, registry)
        self._of_evaluations = KnownGauge(
            "isthmus_metric", "Value of a metric of training.metrics at the last evaluation.", registry, ["name"]
        )
        Distributions(
            "isthmus_step_seconds",
            "Seconds from one finished step to the next, while the run runs.",
            registry,
            statistics.step_time,
        )
        self._attached = Gauge(
            "isthmus_attached", "1 while all training streams to trainers are there, 0 otherwise.", registry=registry
        )
        self.link_losses = Counter(
            "isthmus_link_losses",
            "Training streams that were lost, by the trainer at the other end.",
            ["worker"],
            registry=registry,
        )
        self.rollbacks = Counter(
            "isthmus_rollbacks", "Times that training went back to a checkpoint.", registry=registry
        )
        self.replacements = Counter(
            "isthmus_replacements",
            "Trainers that were away for too long, so that the run went on without them.",
            registry=registry,
        )
        self.stand_ins = Counter(
            "isthmus_stand_ins",
            "Trainers that began in the place of others without a state, which were away.",
            registry=registry,
        )
        self.relayed = Gauge(
            "isthmus_relayed", "Trainers that are out of reach, and reached through another one.", registry=registry
        )
        self.repeated_steps = Counter(
            "isthmus_repeated_steps", "Steps that are done again after going back.", registry=registry
        )
        self.checkpoint_seconds = Histogram(
            "isthmus_checkpoint_seconds",
            "Seconds that training stood still for a checkpoint, after the run was drained.",
            buckets=SECONDS_BUCKETS,
            registry=registry,
        )
        self.checkpoint_timestamp = KnownGauge(
            "isthmus_checkpoint_timestamp_seconds",
            "Unix time of the newest checkpoint that all workers have, or of the run's beginning.",
            registry,
        )
        self.replicated_at: float | None = None
        """Time by time.time at which the newest checkpoint became shared whose replicas are on disk."""
        replica_age = KnownGauge(
            "isthmus_replica_age_seconds",
            "Seconds since the newest checkpoint of which replicas are on disk too.",
            registry,
        )
        replica_age.show(lambda: None if self.replicated_at is None else time.time() - self.replicated_at)
        self.staleness = Distribution(STALENESS_BUCKETS)
        Distributions("isthmus_staleness_steps", "Staleness of every applied error gradient.", registry, self.staleness)
        self._in_flight = Gauge(
            "isthmus_batches_in_flight", "Batches that have begun and hold up others.", registry=registry
        )
        self.blocks = Gauge("isthmus_model_blocks", "Blocks of the whole model.", registry=registry)
        migrations = Counter(
            "isthmus_migrations",
            "Times that blocks were to move: done, or failed with every worker as it was.",
            ["outcome"],
            registry=registry,
        )
        self.migrations_done, self.migrations_failed = migrations.labels("done"), migrations.labels("failed")
        self.migration_seconds = Histogram(
            "isthmus_migration_seconds",
            "Seconds that training stood still while blocks moved, after the run was drained.",
            buckets=SECONDS_BUCKETS,
            registry=registry,
        )
        self.handovers = Counter(
            "isthmus_handovers",
            "Times that a trainer got all that another one had, by what chose it.",
            ["reason"],
            registry=registry,
        )
        for reason in Chooser:
            self.handovers.labels(str(reason))
        self.handover_seconds = Histogram(
            "isthmus_handover_seconds",
            "Seconds that training stood still for a handover, after the run was drained.",
            buckets=SECONDS_BUCKETS,
            registry=registry,
        )
        for queue in QUEUES:
            self.queue_items.labels(queue)
        self._stage_seconds = Distributions(
            "isthmus_stage_seconds",
            "Seconds that a worker of the placement has computed for a step.",
            registry,
            {},
            "worker",
        )
        self._worker_links = KnownGauge(
            "isthmus_worker_link_bytes_per_second",
            "Rate that a link was measured to carry from one worker to another.",
            registry,
            ["link"],
        )
        self._run = Gauge(
            "isthmus_run_info",
            "1, with the id by which the logs of all processes name the run.",
            ["run"],
            registry=registry,
        )
        self.engine = EngineMetrics(registry)
        self.sharing = SharingMetrics(registry)
        self.candidates = CandidateMetrics(registry)

    def show_run(self, run_id: str) -> None:
        """Name the run, and no other."""
        self._run.clear()
        self._run.labels(run_id).set(1)

    def show_metrics(self, names: Iterable[str], statistics: Statistics) -> None:
        """Show the values of the evaluations' metrics."""
        for name in names:
            self._of_evaluations.show(partial(_value_of, statistics, name), name)

    def show_workers(self, statistics: Statistics) -> None:
        """Have a series for each worker and each direction of a link that there is now, and for no other."""
        self._stage_seconds.series = {name: figures.compute for name, figures in statistics.workers.items()}
        self.sharing.show_workers(statistics)
        self._worker_links.clear()
        self.engine.prediction_ratio.clear()
        for sender, receiver in statistics.link_rates:
            if sender == AGENT:
                self.link_losses.labels(receiver)
            read = partial(_bytes_per_second, statistics, (sender, receiver))
            self._worker_links.show(read, f"{sender}>{receiver}")

    def note_migration(self, pause_seconds: float) -> None:
        """Count a move of blocks. pause_seconds: time that training waited for it."""
        self.migrations_done.inc()
        self.migration_seconds.observe(pause_seconds)

    def note_handover(self, by: Chooser, pause_seconds: float) -> None:
        """Count a handover. pause_seconds: time that training waited for it."""
        self.handovers.labels(str(by)).inc()
        self.handover_seconds.observe(pause_seconds)

    def watch(self, run: TrainingRun) -> None:
        """Read the batches under way from `run`, at each scrape and on the scraper's thread."""
        self._in_flight.set_function(lambda: run.step_runner.in_flight)
        self._attached.set_function(lambda: run.training.attached)
        for queue in QUEUES:
            self.queue_items.labels(queue).set_function(partial(_waiting, run, queue))


def _show(statistics: Statistics, registry: CollectorRegistry) -> None:
    """The figures of a run that are read when they are asked for."""
    planned_steps = Gauge("isthmus_planned_steps", "Steps that the run is to have.", registry=registry)
    planned_steps.set(statistics.total_steps)
    rate = KnownGauge(
        "isthmus_link_bytes_per_second",
        "Rate that the link was measured to carry, by direction.",
        registry,
        ["direction"],
    )
    up, down = DIRECTIONS
    rate.show(lambda: _bytes(statistics.uplink_bits_per_second), up)
    rate.show(lambda: _bytes(statistics.downlink_bits_per_second), down)
    held = KnownGauge("isthmus_edge_blocks", "Blocks that the edge runs or owns.", registry)
    held.show(lambda: statistics.edge_blocks if statistics.deployment.codec else None)
    limit = KnownGauge("isthmus_staleness_limit_steps", "K, which no staleness exceeds.", registry)
    limit.show(lambda: statistics.deployment.staleness if statistics.deployment.codec else None)
    bits = KnownGauge(
        "isthmus_codec_bit_width", "Bits that an element has on the link, by direction.", registry, ["direction"]
    )
    bits.show(lambda: _bits(statistics.deployment.codec), up)
    bits.show(lambda: _bits(statistics.deployment.downlink_codec), down)
    loss = KnownGauge("isthmus_loss", "Mean training loss of the last step.", registry)
    loss.show(lambda: statistics.loss)
    scale = KnownGauge("isthmus_loss_scale", "Number by which losses are scaled in float16.", registry)
    scale.show(lambda: statistics.loss_scale)
    unreadable = KnownGauge(
        "isthmus_skipped_samples", "Samples that could not be read, in whose places others were trained on.", registry
    )
    unreadable.show(lambda: statistics.skipped)
    skipped = KnownGauge(
        "isthmus_skipped_updates", "Updates that were skipped because a gradient overflowed in float16.", registry
    )
    skipped.show(lambda: statistics.skipped_updates)
    accuracy = KnownGauge(
        "isthmus_accuracy_ratio", "Share of the test samples that the last evaluation got right.", registry
    )
    accuracy.show(lambda: statistics.accuracy)


def _value_of(statistics: Statistics, metric: str) -> float | None:
    return statistics.metrics.get(metric)


def _bytes_per_second(statistics: Statistics, link: tuple[str, str]) -> float | None:
    return _bytes(statistics.link_rates.get(link))


def _bytes(bits: float | None) -> float | None:
    return None if bits is None else bits / 8


def _waiting(run: TrainingRun, queue: str) -> int:
    return run.step_runner.waiting[queue]


def _bits(codec: str) -> int | None:
    """None until there is a deployment."""
    return codec_bits(codec) if codec else None
