"""Counters and histograms that every step adds to, read at a scrape.

An addition to one of the Prometheus library takes locks and some ten calls, because any thread may add. A quick step adds a
dozen times, on the event loop alone, so these only count, and become the library's families when they are asked for.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString


class Total:
    """One series of a counter. Used on the event loop."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0
        """The sum so far, to which its users add."""


class Totals(Collector):
    """A counter, with a series for each of the given values of its label, from the start."""

    def __init__(
        self, name: str, documentation: str, registry: CollectorRegistry, label: str, values: Iterable[str]
    ) -> None:
        self._about = name, documentation, [label]
        self.series = {value: Total() for value in values}
        registry.register(self)

    def collect(self) -> Iterable[CounterMetricFamily]:
        """Give the registry the counters at a scrape."""
        name, documentation, labels = self._about
        family = CounterMetricFamily(name, documentation, labels=labels)
        for value, total in self.series.items():
            family.add_metric([value], total.value)
        return [family]


class OneTotal(Total, Collector):
    """A counter of one series."""

    __slots__ = ("_about",)

    def __init__(self, name: str, documentation: str, registry: CollectorRegistry) -> None:
        super().__init__()
        self._about = name, documentation
        registry.register(self)

    def collect(self) -> Iterable[CounterMetricFamily]:
        """Give the registry the counter at a scrape."""
        return [CounterMetricFamily(*self._about, value=self.value)]


class Distribution:
    """One series of a histogram. Used on the event loop."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        """bounds: the upper bounds of the buckets, rising; another bucket has what is above all of them."""
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def buckets(self) -> tuple[list[tuple[str, float]], float]:
        """Each bound, as the page of metrics has it, with how many values were at or below it; and the sum of all values."""
        names = [*map(floatToGoString, self._bounds), "+Inf"]
        return list(zip(names, map(float, accumulate(self._counts)), strict=True)), self._sum


class Distributions(Collector):
    """A histogram with a series for each value of a label, or for `""` where it has none."""

    def __init__(
        self,
        name: str,
        documentation: str,
        registry: CollectorRegistry,
        buckets: Sequence[float],
        label: str | None = None,
        values: Iterable[str] = (),
    ) -> None:
        """values: of the label, those that have a series from the start."""
        self._about = name, documentation, [label] if label else []
        self._bounds = tuple(buckets)
        self.series: dict[str, Distribution] = {}
        self.show(values if label else [""])
        registry.register(self)

    def show(self, values: Iterable[str]) -> None:
        """Have a series at zero for each of these values, and for no other."""
        self.series = {value: Distribution(self._bounds) for value in values}

    def collect(self) -> Iterable[HistogramMetricFamily]:
        """Give the registry the histograms at a scrape."""
        name, documentation, labels = self._about
        family = HistogramMetricFamily(name, documentation, labels=labels)
        for value, distribution in self.series.items():
            family.add_metric([value] if labels else [], *distribution.buckets())
        return [family]
