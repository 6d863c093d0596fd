"""Traces: the rate of a link over time, piecewise constant, repeated from the start when it ends.

`Trace` is one direction, `LinkTrace` both. `trace_files.py` knows where a trace was recorded and in which format.
"""

import itertools
import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edge_agent.planning.rates import LEAST_RATE, Rates
from shared.errors import PlanError

ROUNDING = 1e-12
"""Part of a pass's bits that is rounding of their sum."""


class Trace:
    """The rate of one direction. Times are seconds from the start, of any size: it repeats after `duration_seconds`."""

    def __init__(self, times_seconds: Sequence[float], bits_per_second: Sequence[float], where: str = "trace") -> None:
        """times_seconds: the n + 1 rising times between which the n rates hold, the first 0.

        PlanError, beginning with `where`, when they are malformed or the trace carries nothing at all.
        """
        self.times_seconds = [float(time) for time in times_seconds]
        self.bits_per_second = [float(rate) for rate in bits_per_second]
        if not self.bits_per_second:
            raise PlanError(f"{where}: the trace is empty; it needs one rate or more")
        if len(self.times_seconds) != len(self.bits_per_second) + 1 or self.times_seconds[0] != 0.0:
            raise PlanError(f"{where}: a trace of n rates needs n + 1 times, and the first is 0")
        if not all(0.0 < later - earlier < math.inf for earlier, later in itertools.pairwise(self.times_seconds)):
            raise PlanError(f"{where}: the times of a trace must rise")
        if not all(0.0 <= rate < math.inf for rate in self.bits_per_second):
            raise PlanError(f"{where}: each rate of a trace must be a finite number of 0 or more")
        carried = np.diff(self.times_seconds) * np.array(self.bits_per_second)
        self._carried_bits: list[float] = [0.0, *np.cumsum(carried).tolist()]
        if not 0.0 < self._carried_bits[-1] < math.inf:
            raise PlanError(
                f"{where}: the trace carries nothing from beginning to end; no step would ever finish over it"
            )

    @classmethod
    def constant(cls, bits_per_second: float) -> "Trace":
        """Build a link that does not change."""
        return cls([0.0, 1.0], [bits_per_second])

    @classmethod
    def of_durations(
        cls, durations_seconds: Sequence[float], bits_per_second: Sequence[float], where: str = "trace"
    ) -> "Trace":
        """Build a trace of pieces with these durations."""
        return cls([0.0, *np.cumsum(durations_seconds).tolist()], bits_per_second, where)

    @property
    def duration_seconds(self) -> float:
        """Return the time after which it starts again."""
        return self.times_seconds[-1]

    @property
    def mean(self) -> float:
        """Return the bits per second over the whole trace."""
        return self._carried_bits[-1] / self.duration_seconds

    def bits_until(self, moment: float) -> float:
        """Return the bits that the link could have carried from the start to `moment`."""
        passes, rest = divmod(moment, self.duration_seconds)
        piece = min(bisect_right(self.times_seconds, rest), len(self.bits_per_second)) - 1
        within = self._carried_bits[piece] + self.bits_per_second[piece] * (rest - self.times_seconds[piece])
        return passes * self._carried_bits[-1] + within

    def mean_between(self, start: float, end: float) -> float:
        """Return the mean rate in bits per second over [start, end], start < end."""
        return max(0.0, self.bits_until(end) - self.bits_until(start)) / (end - start)

    def finish(self, start: float, bits: float) -> float:
        """Return the time at which `bits` are carried when they begin at `start` and have the link to themselves."""
        if bits <= 0.0:
            return start
        passes, rest = divmod(self.bits_until(start) + bits, self._carried_bits[-1])
        if rest <= ROUNDING * self._carried_bits[-1]:
            # The last bit of a pass: it was carried when the pass had nothing left to carry, not when the pass was
            # over.
            passes, rest = passes - 1, self._carried_bits[-1]
        after = bisect_left(self._carried_bits, rest)
        within = self.times_seconds[after] - (self._carried_bits[after] - rest) / self.bits_per_second[after - 1]
        return max(start, passes * self.duration_seconds + within)


@dataclass(frozen=True)
class LinkTrace:
    """Both directions of a link. Each repeats on its own."""

    uplink: Trace
    downlink: Trace
    round_trip_seconds: float = 0.0
    """Seconds of a bit up and its answer down, half of it each way, whatever the rates."""

    @property
    def duration_seconds(self) -> float:
        """Return the duration of the longer direction."""
        return max(self.uplink.duration_seconds, self.downlink.duration_seconds)

    def rates_between(self, start: float, end: float) -> Rates:
        """Return the mean rates over [start, end], start < end; `LEAST_RATE` where nothing was carried."""
        uplink, downlink = (max(LEAST_RATE, trace.mean_between(start, end)) for trace in (self.uplink, self.downlink))
        return Rates(uplink, downlink, self.round_trip_seconds)


def in_series(links: Sequence[LinkTrace]) -> LinkTrace:
    """Return a path through several links as one: at each time the slowest link counts each way, and all round trips."""
    uplink, downlink = (_slowest(traces) for traces in zip(*((one.uplink, one.downlink) for one in links), strict=True))
    return LinkTrace(uplink, downlink, sum(link.round_trip_seconds for link in links))


def _slowest(traces: Sequence[Trace]) -> Trace:
    """Return the rate of the slowest at each time, by means over a second."""
    if len(traces) == 1:
        return traces[0]
    duration = max(trace.duration_seconds for trace in traces)
    ends = [*np.arange(0.0, duration, 1.0).tolist(), duration]
    pieces = list(itertools.pairwise(ends))
    return Trace(ends, [min(trace.mean_between(*piece) for trace in traces) for piece in pieces])
