"""Metrics that both sides export to Prometheus, and their server. Each side adds those that only it can see.

All series exist, at zero, before the first step: a rate over a series that begins with its first event misses that event.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import grpc
import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, ProcessCollector, start_http_server

from shared.errors import ListenError
from shared.telemetry.phases import PHASES
from shared.telemetry.step_series import Distribution, Distributions, Totals

_log = structlog.get_logger(__name__)

DIRECTIONS = ("up", "down")


class TrainingMetrics:
    """The metrics of one process. Each side fills in those that it can see."""

    def __init__(self, registry: CollectorRegistry, phases: Mapping[str, Distribution] | None = None) -> None:
        """phases: those of `PHASES` whose seconds are kept elsewhere already."""
        self.registry = registry
        ProcessCollector(registry=registry)
        self.steps = Totals(
            "isthmus_steps", "Steps done: on the edge by every worker, on a trainer by itself.", registry
        ).only
        self.samples = Totals("isthmus_samples", "Samples in the steps done.", registry).only
        payload = Totals(
            "isthmus_payload_bytes", "Payload bytes of tensors, by direction.", registry, "direction", DIRECTIONS
        )
        self.bytes_up, self.bytes_down = payload.series.values()
        saved = Totals(
            "isthmus_saved_bytes", "Bytes that codecs spared the link, by direction.", registry, "direction", DIRECTIONS
        )
        self.saved_up, self.saved_down = saved.series.values()
        self.phase_seconds = {phase: Distribution() for phase in PHASES} | dict(phases or {})
        Distributions(
            "isthmus_phase_seconds",
            "Seconds of one step in one of the four phases: edge (T1), uplink (T2), cloud (T3), downlink (T4). "
            "A transfer counts from its first byte written to its acknowledgement, on the sending side.",
            registry,
            self.phase_seconds,
            "phase",
        )
        self.queue_items = Gauge(
            "isthmus_queue_items",
            "What waits: tensors for links (send), batches or arrivals (compute), gradients to apply (apply); each is bounded.",
            ["queue"],
            registry=registry,
        )
        self._errors = Counter(
            "isthmus_errors", "Calls that ended with an error, by gRPC code.", ["code"], registry=registry
        )
        self._token_file_broken = Gauge(
            "isthmus_token_file_broken",
            "1 while the file of tokens that this side was given cannot be used.",
            registry=registry,
        )
        for code in grpc.StatusCode:
            if code is not grpc.StatusCode.OK:
                self._errors.labels(code.name)

    def watch_token_file(self, broken: Callable[[], bool]) -> None:
        """Ask at each scrape, on the scraper's thread, whether the file of tokens is broken."""
        self._token_file_broken.set_function(lambda: float(broken()))

    def failed(self, code: grpc.StatusCode) -> None:
        """A call has ended with an error."""
        self._errors.labels(code.name).inc()


@contextmanager
def serving_metrics(listen: str | None, registry: CollectorRegistry) -> Iterator[None]:
    """Serve /metrics on host:port from a thread of its own while the block runs; None serves nothing.

    The log says which address is really listened on. Raises ListenError when it cannot be had.
    """
    if listen is None:
        yield
        return
    host, _, port = listen.rpartition(":")
    try:
        server, thread = start_http_server(int(port), host.strip("[]"), registry)
    except OSError as cause:
        raise ListenError(f"metrics.listen: cannot listen on {listen}: {cause.strerror or cause}") from cause
    _log.info("metrics", address=f"{host}:{server.server_port}")
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
