"""Connections that come to nothing: failed handshakes, and peers that never make a call.

gRPC tells its server nothing of either. Its lines about handshakes with GRPC_TRACE=handshaker, some for each connection
and none for a call, come by `shared.telemetry.raw_lines`. A connection that makes no call, because it speaks no HTTP/2
or has TLS where this port has none, is noticed by the time that has passed. All are counted, and some are logged.
"""

import asyncio
import re
import time
from functools import partial

import structlog

from cloud_trainer.metrics import TrainerMetrics
from shared.telemetry.raw_lines import RawLines
from shared.transport.auth.rate import RateLimit

_log = structlog.get_logger(__name__)

FIRST_CALL_SECONDS = 10.0
"""Longest time that a connection may be without its first call. Clients of ours connect when they have one."""
_MOST_REMEMBERED = 4096
_LOGGED_PER_SECOND, _LOGGED_PER_SECOND_OF_ALL = 0.1, 1.0
"""Largest rates of log lines in the long run, of one host for one reason, and of all: strangers must not fill the disk."""

_SOURCES = re.compile(
    r"^\S+ \S+ +\d+ (handshaker\.cc|channel_trace\.h|ssl_transport_security\.cc|trace\.cc):\d+\] ", re.ASCII
)
"""Beginning of gRPC's lines about handshakes, and of those that announce them."""
_STEP = re.compile(r"CallNextHandshakerLocked: error=(.*?)$", re.MULTILINE)
_OUTCOME_OF_SERVER = re.compile(
    r"grpc\.internal\.endpoint_peer_address=([^\s,}]+).*grpc\.internal\.server_credentials="
)
_REASONS = {
    "WRONG_VERSION_NUMBER": "it does not speak TLS",
    "HTTP_REQUEST": "it speaks HTTP without TLS",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it showed no certificate, which tls.ca asks for",
    "CERTIFICATE_VERIFY_FAILED": "its certificate is not one that tls.ca has signed",
    "ALERT_UNKNOWN_CA": "it does not trust this trainer's certificate",
    "Socket closed": "it ended the connection, as a client does that does not trust this trainer's certificate",
    "BAD_PACKET_LENGTH": "what it sent cannot be read; it may not trust this trainer's certificate",
    "timed out": "it took too long",
}


class Connections:
    """The connections of one trainer, from their handshake to their first call. Used on the event loop."""

    def __init__(self, metrics: TrainerMetrics) -> None:
        self._metrics = metrics
        self._waiting: dict[str, asyncio.TimerHandle] = {}
        """Timers of peers that have made no call yet, by peer."""
        self._callers: dict[str, None] = {}
        """Peers that have made calls, the latest last: gRPC's word of a handshake may come after the first call."""
        self._logged_of_one = RateLimit(_LOGGED_PER_SECOND, time.monotonic)
        self._logged_of_all = RateLimit(_LOGGED_PER_SECOND_OF_ALL, time.monotonic)

    def follow(self, raw_lines: RawLines) -> None:
        """Hear from now on of the handshakes that gRPC writes about."""
        raw_lines.hear = partial(self._hear, asyncio.get_running_loop())

    def _hear(self, loop: asyncio.AbstractEventLoop, entry: str) -> bool:
        """Take an entry, on the reading thread. Returns whether it was about handshakes."""
        if _SOURCES.match(entry) is None:
            return False
        step, outcome = _STEP.search(entry), _OUTCOME_OF_SERVER.search(entry)
        if step is not None and outcome is not None and not outcome[1].startswith("unix"):
            if step[1].partition(" ")[0] != "OK":
                loop.call_soon_threadsafe(self._failed, outcome[1], _reason(step[1]))
            elif "grpc.auth_context=" in entry:  # which the last step of a handshake leaves
                loop.call_soon_threadsafe(self._connected, outcome[1])
        return True

    def called(self, peer: str) -> None:
        """A call has come on the connection of this peer."""
        if (waiting := self._waiting.pop(peer, None)) is not None:
            waiting.cancel()
        self._callers.pop(peer, None)
        self._callers[peer] = None
        if len(self._callers) > _MOST_REMEMBERED:
            del self._callers[next(iter(self._callers))]

    def close(self) -> None:
        """Expect no call any more."""
        for waiting in self._waiting.values():
            waiting.cancel()
        self._waiting.clear()

    def _connected(self, peer: str) -> None:
        if peer not in self._callers and len(self._waiting) < _MOST_REMEMBERED:
            self._waiting[peer] = asyncio.get_running_loop().call_later(FIRST_CALL_SECONDS, self._made_no_call, peer)

    def _made_no_call(self, peer: str) -> None:
        del self._waiting[peer]
        silent = f"it made no call in {FIRST_CALL_SECONDS:g} s"
        self._failed(peer, f"{silent}: it may speak no HTTP/2, or TLS where this port has none")

    def _failed(self, peer: str, reason: str) -> None:
        self._metrics.failed_handshakes.inc()
        host = peer.rpartition(":")[0]
        if not self._logged_of_one.take(f"{host} {reason}") and not self._logged_of_all.take(""):
            _log.warning("handshake failed", peer=peer, reason=reason)


def _reason(error: str) -> str:
    return next((reason for words, reason in _REASONS.items() if words in error), error[:300])
