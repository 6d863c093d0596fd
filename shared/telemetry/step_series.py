"""Counters and histograms that every step adds to, read at a scrape.

An addition to one of the Prometheus library takes locks and some ten calls, because any thread may add. A quick step adds a
dozen times, on the event loop alone, so these only count, and become the library's families when they are asked for.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

SECONDS_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
NEWEST_WEIGHT = 0.1
"""Weight of the newest value in a recent mean, which then covers about the last ten."""


class Total:
    """One series of a counter. Used on the event loop."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0
        """The sum so far, to which its users add."""


class Totals(Collector):
    """A counter of one series, or of one for each of the given values of its label, from the start."""

    def __init__(
        self,
        name: str,
        documentation: str,
        registry: CollectorRegistry,
        label: str | None = None,
        values: Iterable[str] = ("",),
    ) -> None:
        self._about = name, documentation, [label] if label else []
        self.series = {value: Total() for value in values}
        registry.register(self)

    def collect(self) -> Iterable[CounterMetricFamily]:
        """Give the registry the counters at a scrape."""
        name, documentation, labels = self._about
        family = CounterMetricFamily(name, documentation, labels=labels)
        for value, total in self.series.items():
            family.add_metric([value] if labels else [], total.value)
        return [family]

    @property
    def only(self) -> Total:
        """Return the series of a counter without a label."""
        return self.series[""]


class Distribution:
    """The values of one kind: in total, recently, and as one series of a histogram. Used on the event loop."""

    __slots__ = ("_bounds", "_counts", "recent", "total")

    def __init__(self, bounds: Sequence[float] = SECONDS_BUCKETS) -> None:
        """bounds: the upper bounds of the buckets, rising; another bucket has what is above all of them."""
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.total = 0.0
        """The sum of all values."""
        self.recent: float | None = None
        """Exponential moving average; None before the first value."""

    @property
    def count(self) -> int:
        """Number of the values."""
        return sum(self._counts)

    def observe(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self.total += value
        self.recent = value if self.recent is None else self.recent + NEWEST_WEIGHT * (value - self.recent)

    def buckets(self) -> tuple[list[tuple[str, float]], float]:
        """Each bound, as the page of metrics has it, with how many values were at or below it; and the sum of all values."""
        names = [*map(floatToGoString, self._bounds), "+Inf"]
        return list(zip(names, map(float, accumulate(self._counts)), strict=True)), self.total


class Distributions(Collector):
    """A histogram of distributions that others keep: one, or one for each value of a label."""

    def __init__(
        self,
        name: str,
        documentation: str,
        registry: CollectorRegistry,
        series: Distribution | Mapping[str, Distribution],
        label: str | None = None,
    ) -> None:
        """series: all of them, by the value of the label; a user may set another mapping, as values come and go."""
        self._about = name, documentation, [label] if label else []
        self.series = {"": series} if isinstance(series, Distribution) else series
        registry.register(self)

    def collect(self) -> Iterable[HistogramMetricFamily]:
        """Give the registry the histograms at a scrape."""
        name, documentation, labels = self._about
        family = HistogramMetricFamily(name, documentation, labels=labels)
        for value, distribution in self.series.items():
            family.add_metric([value] if labels else [], *distribution.buckets())
        return [family]
