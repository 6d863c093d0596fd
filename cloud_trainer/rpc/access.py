"""Rights of callers on this trainer, and the addresses at which it may listen without asking for credentials."""

import time
from collections.abc import Mapping

import grpc
import structlog
from grpc_health.v1 import health
from grpc_reflection.v1alpha import reflection

from cloud_trainer.config import TrainerConfig
from cloud_trainer.control.service import SERVICE as CONTROL
from cloud_trainer.metrics import TrainerMetrics
from cloud_trainer.rpc.connections import Connections
from cloud_trainer.rpc.methods import SERVICE
from shared.config import is_loopback
from shared.errors import ConfigError, one_line
from shared.events import Events
from shared.events.calls import CallMade, CallRefused
from shared.transport.auth.callers import Authenticator, FindTicket
from shared.transport.auth.gate import Gate, GateLimits, scopes_of
from shared.transport.auth.rate import RateLimit
from shared.transport.auth.reloaded import Reloaded
from shared.transport.auth.scopes import Scope
from shared.transport.auth.tls import TlsFiles, server_credentials
from shared.transport.auth.tokens import TokenBook, read_tokens
from shared.transport.rpc.status import status_of

_log = structlog.get_logger(__name__)
_LOGGED_PER_SECOND = 0.1
"""Refusals of one host that are logged in the long run: a stranger must not fill the disk. All are counted."""

CHECK = f"/{health.SERVICE_NAME}/Check"
LINK, DOWNLOAD_BLOCK = f"/{SERVICE.full_name}/Link", f"/{SERVICE.full_name}/DownloadBlock"
REFLECTION = f"/{reflection.SERVICE_NAME}/ServerReflectionInfo"
"""Methods that a ticket lets another trainer call; the last by a ticket for blocks, to measure the link."""
SCOPES: dict[str, Scope | None] = {
    **scopes_of(SERVICE, CONTROL),
    REFLECTION: Scope.READ,
    f"/{health.SERVICE_NAME}/Watch": Scope.READ,
    f"/{health.SERVICE_NAME}/List": Scope.READ,
    CHECK: None,  # for load balancers and probes; says only whether the trainer serves
}
"""The scope that each method needs, by its path."""


def build_gate(
    config: TrainerConfig, metrics: TrainerMetrics, connections: Connections, tickets: Mapping[str, FindTicket]
) -> Gate:
    """Build the gate of this trainer. tickets: finder of a ticket's caller, by the full name of each method that takes tickets.

    Raises ConfigError when it would be open to others without an explicit setting.
    """
    tokens = config.auth.tokens
    book = None
    if tokens is not None:
        # A file that cannot be read at the start, which may be a restart, ends nothing: once it is fixed it is read at once.
        book = Reloaded([tokens], lambda: read_tokens(tokens), TokenBook(), "nobody new is admitted")
    authenticator = Authenticator(book, certificates=config.tls.ca is not None, tickets=tickets)
    metrics.watch_token_file(lambda: authenticator.failure is not None)
    _check_exposure(config, asks=authenticator.asks)
    logged = RateLimit(_LOGGED_PER_SECOND, time.monotonic)

    def log(refused: CallRefused) -> None:
        if not logged.take(refused.host):
            code, reason = status_of(refused.error).name, one_line(str(refused.error))
            _log.warning("call refused", method=refused.method, peer=refused.host, code=code, reason=reason)

    events = _counted(metrics, connections)
    events.subscribe(CallRefused, log)
    return Gate(authenticator, SCOPES, _limits(config), events.emit)


def build_probe_gate(config: TrainerConfig, metrics: TrainerMetrics, connections: Connections) -> Gate:
    """Build the gate of the port that answers probes alone, those of any caller."""
    anybody = Authenticator(None, certificates=False)
    return Gate(anybody, {CHECK: None}, _limits(config), _counted(metrics, connections).emit)


def _counted(metrics: TrainerMetrics, connections: Connections) -> Events:
    """Return the events of one gate, of which the metrics and the watch over connections are told."""
    events = Events()
    events.subscribe(CallMade, lambda made: connections.called(made.peer))
    events.subscribe(CallRefused, lambda refused: metrics.failed(status_of(refused.error)))
    return events


def _limits(config: TrainerConfig) -> GateLimits:
    return GateLimits(config.server.max_calls_per_second, config.server.max_calls_at_once)


def listen(server: grpc.aio.Server, config: TrainerConfig) -> int:
    """Open the port, with TLS where it is configured; returns its number. Raises RuntimeError where gRPC cannot."""
    tls = config.tls
    if tls.certificate is None:
        return server.add_insecure_port(config.server.listen)
    return server.add_secure_port(config.server.listen, server_credentials(TlsFiles(tls.certificate, tls.key, tls.ca)))


def _check_exposure(config: TrainerConfig, *, asks: bool) -> None:
    address = config.server.listen
    missing = [
        *(["encryption (tls.certificate and tls.key)"] if config.tls.certificate is None else []),
        *([] if asks else ["authentication (auth.tokens or tls.ca)"]),
    ]
    if not missing or is_loopback(address):
        return
    lacking = " and ".join(missing)
    if not config.server.insecure:
        raise ConfigError(
            f"server.listen is {address}, which other machines may reach, without {lacking}; configure what is missing, "
            "listen on 127.0.0.1, or set server.insecure = true to have it so"
        )
    _log.warning("open to the network", address=address, without=lacking)
