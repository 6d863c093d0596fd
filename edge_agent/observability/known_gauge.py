"""A gauge whose series show what is known, and are not there where nothing is."""

import math
from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

Read = Callable[[], float | None]
"""Reads a figure at a scrape, on the scraper's thread; None where it is not known."""


class KnownGauge(Collector):
    """A gauge with a series for each set of values of its labels whose figure is known."""

    def __init__(self, name: str, documentation: str, registry: CollectorRegistry, labels: Iterable[str] = ()) -> None:
        self._about = name, documentation
        self._labels = list(labels)
        self._reads: dict[tuple[str, ...], Read] = {}
        registry.register(self)

    def show(self, read: Read, *values: str) -> None:
        """Add a series, by the values of its labels. read: its value."""
        self._reads[values] = read

    def set(self, figure: float, *values: str) -> None:
        """Have a series that shows this figure, or none where it is NaN, which stands for one that is not known."""
        self.show(lambda: None if math.isnan(figure) else figure, *values)

    def clear(self) -> None:
        """Have no series."""
        self._reads = {}

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """Return the gauges for the registry, which asks at a scrape."""
        family = GaugeMetricFamily(*self._about, labels=self._labels)
        for values, read in list(self._reads.items()):
            if (figure := read()) is not None:
                family.add_metric(values, figure)
        return [family]
