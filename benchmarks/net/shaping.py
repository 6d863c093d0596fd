"""Shaping of the packets that leave or reach one end of a link: rate and loss.

Rate is `tc tbf`, loss is an nft rule. Knows device and namespace by name, nothing of what runs inside.
"""

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from benchmarks.net.tools import LinkError, run_tool

BURST_BYTES = 8 * 1024
"""Largest burst after a pause. A large burst lets a whole feature through for nothing: with 128 KiB, 100 kB after an
idle 0.2 s took 0.2 ms on a 10 Mbit/s link instead of 80 ms. 8 KiB costs no throughput up to 500 Mbit/s."""

QUEUE_BYTES = 128 * 1024
"""Longest queue ahead of the link: 0.1 s at 10 Mbit/s. Both stay constant when the rate changes: a burst that shrinks
can stall the queue for seconds, because a unit that is longer than the burst never passes."""

SLOW_BITS_PER_SECOND = 10e6
"""A link that begins below this rate has the next two figures instead, and keeps them: at 0.25 Mbit/s the usual ones let a
small feature pass for nothing and hold back 4 s of what was sent."""
SLOW_BURST_BYTES = 1600
"""One packet with its headers."""
SLOW_QUEUE_BYTES = 16 * 1024
"""Half a second at 0.25 Mbit/s; ten packets, with which TCP begins."""

FAST_BITS_PER_SECOND = 100e6
"""A link that begins at this rate or above it has the next two figures, and keeps them. The shaper cuts a unit that is longer
than the burst into packets: of two members whose links carry 300 Mbit/s both ways, that took half of what two cores have."""
FAST_BURST_SECONDS = 0.0005
"""Time of the largest burst, where that is more than the usual one."""
FAST_UNIT = 0.9
"""Part of the burst that a unit has; the rest is for its headers."""

OUTAGE_BITS_PER_SECOND = 64_000.0
"""Stands in for a rate below it in a trace: tbf cannot hold 0, and much less makes it slow to wake up again."""

_LOSSY_GSO_BYTES = 8000
"""Largest unit that is lost as one; without it the kernel passes 64 KiB as one packet."""
_USUAL_GSO_BYTES = 65536

Trace = Sequence[tuple[float, float]]
"""(seconds since the start, bits per second from then on), ascending in time."""


class LinkEnd:
    """One device of a link, in its namespace."""

    def __init__(self, namespace: str, device: str) -> None:
        self._namespace = namespace
        self._device = device
        self._shaped = False
        self._burst_bytes, self._queue_bytes = BURST_BYTES, QUEUE_BYTES
        self._unit_bytes = _USUAL_GSO_BYTES
        """Largest unit that the shaper takes whole."""
        self._lossy = False

    def shape(self, bits_per_second: float) -> None:
        """Limit what leaves through this end; effective within 0.25 s."""
        if not bits_per_second > 0:
            raise LinkError(f"a link cannot be shaped to {bits_per_second:g} bit/s; the rate must be above 0")
        if not self._shaped:
            self._suit(bits_per_second)
        self._tc(
            "change" if self._shaped else "add",
            *("tbf", "rate", f"{bits_per_second:.0f}bit"),
            *("burst", str(self._burst_bytes), "limit", str(self._queue_bytes)),
        )
        self._shaped = True

    def _suit(self, bits_per_second: float) -> None:
        """Choose burst, queue and units for a link that begins at this rate."""
        if bits_per_second < SLOW_BITS_PER_SECOND:
            self._burst_bytes, self._queue_bytes = SLOW_BURST_BYTES, SLOW_QUEUE_BYTES
        elif bits_per_second >= FAST_BITS_PER_SECOND:
            self._burst_bytes = max(BURST_BYTES, round(bits_per_second / 8 * FAST_BURST_SECONDS))
            self._set_units(min(_USUAL_GSO_BYTES, round(FAST_UNIT * self._burst_bytes)), lossy=self._lossy)

    def unshape(self) -> None:
        """Lift the limit."""
        if self._shaped:
            self._tc("del")
            self._shaped = False
            self._burst_bytes, self._queue_bytes = BURST_BYTES, QUEUE_BYTES
            self._set_units(_USUAL_GSO_BYTES, lossy=self._lossy)

    def sent_bytes(self) -> int:
        """Bytes of frames that have passed the shaper so far."""
        shown = run_tool("tc", "-j", "-s", "-n", self._namespace, "qdisc", "show", "dev", self._device, "root")
        return int(json.loads(shown)[0]["bytes"])

    def _tc(self, action: str, *discipline: str) -> None:
        run_tool("tc", "-n", self._namespace, "qdisc", action, "dev", self._device, "root", *discipline)

    def lose_arriving(self, fraction: float) -> None:
        """Drop this fraction of what arrives, at random; 0 stops it, 1 is silence.

        On arrival, because a packet dropped where it is sent is an error that the sender's TCP is told of.
        """
        if not 0 <= fraction <= 1:
            raise LinkError(f"a link cannot lose the fraction {fraction:g} of its packets; it must lie in 0..1")
        millionth = round(fraction * 1e6)
        chance = f"numgen random mod 1000000 < {millionth}" if millionth < 1e6 else ""
        rule = f'type filter hook prerouting priority 0\niifname "{self._device}" {chance} drop' if millionth else ""
        run_tool(
            *("ip", "netns", "exec", self._namespace, "nft", "-f", "-"),
            script=f"table inet isthmus\ndelete table inet isthmus\ntable inet isthmus {{\nchain loss {{\n{rule}\n}}\n}}\n",
        )

    def limit_units(self, *, lossy: bool) -> None:
        """Send in units small enough for loss to hit single packets, or in the usual ones."""
        self._set_units(self._unit_bytes, lossy=lossy)

    def _set_units(self, most_bytes: int, *, lossy: bool) -> None:
        self._unit_bytes, self._lossy = most_bytes, lossy
        size = min(most_bytes, _LOSSY_GSO_BYTES) if lossy else most_bytes
        run_tool("ip", "-n", self._namespace, "link", "set", self._device, "gso_max_size", str(size))


def play(
    trace: Trace,
    shape: Callable[[float], None],
    *,
    wait: Callable[[float], bool],
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Call `shape` with each rate of the trace when its time has come; the last rate stays.

    wait: sleeps for at most the seconds given and says whether to give up (`threading.Event.wait`).
    """
    start = clock()
    for seconds, bits_per_second in trace:
        if wait(max(0.0, start + seconds - clock())):
            return
        shape(max(bits_per_second, OUTAGE_BITS_PER_SECOND))


@contextmanager
def playing(trace: Trace, shape: Callable[[float], None]) -> Iterator[None]:
    """`play` beside the body, until the body ends; what went wrong meanwhile is raised then."""
    check_trace(trace)
    stopped = threading.Event()
    errors: list[LinkError] = []

    def run() -> None:
        try:
            play(trace, shape, wait=stopped.wait)
        except LinkError as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="trace", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()
    if errors:
        raise errors[0]


def check_trace(trace: Trace) -> None:
    """LinkError unless times start at 0 or later and rise, and no rate is negative."""
    before = -1.0
    for index, (seconds, bits_per_second) in enumerate(trace):
        if seconds < 0 or seconds <= before or not bits_per_second >= 0:
            raise LinkError(
                f"trace entry {index} is ({seconds:g} s, {bits_per_second:g} bit/s); "
                "times must rise from 0 or later and rates must not be negative"
            )
        before = seconds
