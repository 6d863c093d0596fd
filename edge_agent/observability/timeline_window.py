"""A stretch of a time line, and how well its workers and links overlapped in it. Pure functions over spans."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from edge_agent.observability.lanes import TimelineLane
from edge_agent.observability.timeline import RecordedTimeline, Span
from shared.errors import ConfigError
from shared.telemetry.phases import PHASES

_IN_TURN = ("uplink", "downlink")


@dataclass(frozen=True, slots=True)
class TimelineWindow:
    """The spans from the start of one step's forward to that of another, `steps` later; `spans` are clipped to it."""

    first_step: int
    steps: int
    start: float
    end: float
    titles: Mapping[TimelineLane, str]
    """Titles of the lanes of the whole time line, from top to bottom."""
    spans: tuple[Span, ...]
    rates: Mapping[TimelineLane, float]
    """Bits per second between trainers, as they were heard last."""

    @property
    def seconds(self) -> float:
        """Its length; a nanosecond at least, which is how exactly a time line is kept."""
        return max(self.end - self.start, 1e-9)

    @property
    def steps_per_second(self) -> float:
        """The rate at which steps were started."""
        return self.steps / self.seconds

    def busy(self, lane: TimelineLane) -> float:
        """The share of the time, 0 to 1, in which something was at work in a lane."""
        return _union_seconds(span for span in self.spans if span.lane == lane) / self.seconds

    @property
    def phases(self) -> list[TimelineLane]:
        """The lanes that count for the overlap: each worker, and each way of a link of the device.

        Encoding belongs to the ways from the device and is not counted by itself. Of ways between trainers no times are known.
        """
        return [lane for lane in self.titles if lane.phase in PHASES]

    @property
    def overlap(self) -> float:
        """Return the average number of phases that were at work at once: 1 where each waits for the others."""
        return sum(map(self.busy, self.phases))

    @property
    def pace(self) -> str:
        """Describe the number of steps that were started a second, and the overlap of the phases."""
        of = "1 phase" if len(self.phases) == 1 else f"{len(self.phases)} phases"
        return f"{self.steps_per_second:.1f} steps/s, {self.overlap:.1f} of {of} at work at once"

    def figure(self, lane: TimelineLane) -> str:
        """Describe a lane: the share of the time in which it was at work, or its rate; empty where nothing is known."""
        if lane in self.phases:
            return f"{self.busy(lane):.0%}"
        return f"{self.rates[lane] / 1e6:.1f} Mbit/s" if lane in self.rates else ""


def choose_window(trace: RecordedTimeline, steps: int, first_step: int | None = None) -> TimelineWindow:
    """A window of so many steps, or of all where there are fewer.

    first_step: where it begins; None takes a stretch of typical length, the median of all that begin after the first
    quarter of the run and are not near a pause, as at the end of an epoch. Raises ConfigError for a step that is not in
    the trace.
    """
    spans = in_turn(trace.spans)
    starts = _starts(spans)
    known = sorted(starts)
    if first_step is not None and first_step not in starts:
        raise ConfigError(f"--from is {first_step}; the time line has the steps {known[0]} to {known[-1]}")
    if first_step is None:
        first_step = _typical_start(known, starts, spans, steps)
    index = known.index(first_step)
    shown, later = known[index : index + steps], known[index + steps :]
    start = starts[first_step]
    end = starts[later[0]] if later else max(span.end for span in spans if span.step <= shown[-1])
    end = max(start, end)  # where a later step was begun before this one
    inside = tuple(
        Span(span.lane, span.what, span.step, max(span.start, start), min(span.end, end))
        for span in spans
        if span.start < end and span.end > start
    )
    rates = {news.lane: news.bits_per_second for news in trace.rates if news.at <= end}
    return TimelineWindow(first_step, len(shown), start, end, trace.titles, inside, rates)


def _starts(spans: Sequence[Span]) -> dict[int, float]:
    """Return the start of each step: its first forward on the edge, or, where the edge has none, its first span. Spans
    in order."""
    forwards = [span for span in spans if span.lane.phase == "edge" and span.what.startswith("forward")]
    starts: dict[int, float] = {}
    for span in forwards or spans:
        starts.setdefault(span.step, span.start)
    return starts


def in_turn(spans: Sequence[Span]) -> list[Span]:
    """Spans by their starts, those of a link clipped to the time in which it carried them.

    A link carries one tensor after the other. The sender's span of a tensor begins when it hands over the first byte,
    which then waits behind the tensor before.
    """
    found: list[Span] = []
    free_at: defaultdict[TimelineLane, float] = defaultdict(lambda: float("-inf"))
    for span in sorted(spans, key=lambda span: (span.start, span.end)):
        if span.lane.phase in _IN_TURN:
            start = min(max(span.start, free_at[span.lane]), span.end)
            free_at[span.lane] = max(free_at[span.lane], span.end)
            span = Span(span.lane, span.what, span.step, start, span.end)
        found.append(span)
    return found


def summary(window: TimelineWindow) -> str:
    """The figures of a window, on one line."""
    figures = ", ".join(f"{title} {known}" for lane, title in window.titles.items() if (known := window.figure(lane)))
    return f"steps {window.first_step} to {window.first_step + window.steps - 1}: {window.pace} ({figures})"


def _typical_start(known: Sequence[int], starts: dict[int, float], spans: Sequence[Span], steps: int) -> int:
    candidates = range(len(known) // 4, len(known) - steps)
    if not candidates:
        return known[max(len(known) - steps, 0)]
    pauses = _pauses(known, starts, spans)
    calm = [index for index in candidates if not any(pauses[max(index - steps // 2, 0) : index + steps + 1])]
    ordered = sorted(calm or candidates, key=lambda index: starts[known[index + steps]] - starts[known[index]])
    return known[ordered[(len(ordered) - 1) // 2]]


def _pauses(known: Sequence[int], starts: dict[int, float], spans: Sequence[Span]) -> list[bool]:
    """For each step whether nothing was in flight when it began, unless that is how most begin, as with K = 0."""
    ends = dict.fromkeys(known, 0.0)
    for span in spans:
        ends[span.step] = max(ends.get(span.step, 0.0), span.end)
    settled = accumulate((ends[step] for step in known), max, initial=float("-inf"))
    pauses = [until <= starts[step] for step, until in zip(known, settled, strict=False)]
    return pauses if sum(pauses) * 2 < len(pauses) else [False] * len(pauses)


def _union_seconds(spans: Iterable[Span]) -> float:
    total, reached = 0.0, float("-inf")
    for span in sorted(spans, key=lambda span: span.start):
        total += max(span.end - max(span.start, reached), 0.0)
        reached = max(reached, span.end)
    return total
