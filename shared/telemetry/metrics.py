"""What both sides export to Prometheus. All series exist, at zero, before the first step."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from shared.errors import ListenError

MODULES = ("edge", "uplink", "cloud", "downlink")
"""The four modules of a step, whose seconds are T1 to T4 (paper 000, 4.1)."""

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


class TrainingMetrics:
    """One process's metrics; each side fills in what it can see."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self.steps = Counter("isthmus_steps", "Steps whose update this side has applied.", registry=registry)
        self.samples = Counter("isthmus_samples", "Samples in those steps.", registry=registry)
        payload = Counter(
            "isthmus_payload_bytes", "Payload bytes of tensors, by direction.", ["direction"], registry=registry
        )
        self.bytes_up, self.bytes_down = payload.labels("up"), payload.labels("down")
        saved = Counter(
            "isthmus_saved_bytes", "Bytes that codecs spared the link, by direction.", ["direction"], registry=registry
        )
        self.saved_up, self.saved_down = saved.labels("up"), saved.labels("down")
        rate = Gauge(
            "isthmus_link_bits_per_second",
            "Rate that the link was measured to carry, by direction; 0 while it is not known.",
            ["direction"],
            registry=registry,
        )
        self.uplink_rate, self.downlink_rate = rate.labels("up"), rate.labels("down")
        modules = Histogram(
            "isthmus_module_seconds",
            "Seconds of one step in one of the four modules: edge (T1), uplink (T2), cloud (T3), downlink (T4). "
            "A transfer counts from its first byte written to its acknowledgement, on the sending side.",
            ["module"],
            buckets=_SECONDS,
            registry=registry,
        )
        self.module_seconds = {module: modules.labels(module) for module in MODULES}
        self.staleness = Histogram(
            "isthmus_staleness_steps",
            "Staleness of every applied error gradient.",
            buckets=(0, 1, 2, 3, 4, 5, 6, 8, 12, 16, 32, 64),
            registry=registry,
        )
        migrations = Counter(
            "isthmus_migrations",
            "Times that the cut was to be moved: done, or failed with both sides as they were.",
            ["outcome"],
            registry=registry,
        )
        self.migrations_done, self.migrations_failed = migrations.labels("done"), migrations.labels("failed")
        self.migration_seconds = Histogram(
            "isthmus_migration_seconds",
            "Seconds that training stood still while the cut was moved, after the pipeline was drained.",
            buckets=_SECONDS,
            registry=registry,
        )
        self.loss = Gauge("isthmus_loss", "Mean training loss of the last step.", registry=registry)
        self.sessions = Gauge("isthmus_sessions", "Open sessions.", registry=registry)
        self.errors = Counter(
            "isthmus_errors", "Calls that ended with an error, by gRPC code.", ["code"], registry=registry
        )


def serve_metrics(listen: str, registry: CollectorRegistry) -> str:
    """Serve /metrics on host:port from a thread of its own; returns the address that is really listened on.

    Raises ListenError when the address cannot be had.
    """
    host, _, port = listen.rpartition(":")
    try:
        server, _thread = start_http_server(int(port), host.strip("[]"), registry)
    except OSError as cause:
        raise ListenError(f"metrics.listen: cannot listen on {listen}: {cause.strerror or cause}") from cause
    return f"{host}:{server.server_port}"
