"""A stretch of a time line, and how well the four phases overlapped in it. Pure functions over spans."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from edge_agent.observability.timeline import LANES, Span
from shared.errors import ConfigError
from shared.telemetry.phases import PHASES

_IN_TURN = ("uplink", "downlink")


@dataclass(frozen=True, slots=True)
class Window:
    """What happened from the start of one step's forward to that of another, `steps` later; `spans` are clipped to it."""

    first_step: int
    steps: int
    start: float
    end: float
    spans: tuple[Span, ...]

    @property
    def seconds(self) -> float:
        """Its length; a nanosecond at least, which is how exactly a time line is kept."""
        return max(self.end - self.start, 1e-9)

    @property
    def steps_per_second(self) -> float:
        """The rate at which steps were started."""
        return self.steps / self.seconds

    def busy(self, phase: str) -> float:
        """The share of the time, 0 to 1, in which a phase was at work."""
        return _union_seconds(span for span in self.spans if span.phase == phase) / self.seconds

    @property
    def overlap(self) -> float:
        """How many of the four phases were at work at once, on average: 1 where each waits for the others.

        Encoding belongs to the uplink's phase and is not counted by itself.
        """
        return sum(self.busy(phase) for phase in PHASES)


def choose_window(spans: Sequence[Span], steps: int, first_step: int | None = None) -> Window:
    """A window of so many steps, or of all where there are fewer.

    first_step: where it begins; None takes a stretch of typical length, the median of all that begin after the first
    quarter of the run and are not near a pause, as at the end of an epoch. Raises ConfigError for a step that is not in
    the trace.
    """
    spans = in_turn(spans)
    starts: dict[int, float] = {}
    for span in spans:
        if span.phase == "edge" and span.what.startswith(
            "forward"
        ):  # alone, or with all of the step where nothing crosses
            starts.setdefault(span.step, span.start)
    if not starts:
        raise ConfigError("the time line has no step of the edge; was the run ended before its first?")
    known = sorted(starts)
    if first_step is not None and first_step not in starts:
        raise ConfigError(f"--from is {first_step}; the time line has the steps {known[0]} to {known[-1]}")
    if first_step is None:
        first_step = _typical_start(known, starts, spans, steps)
    index = known.index(first_step)
    shown, later = known[index : index + steps], known[index + steps :]
    start = starts[first_step]
    end = starts[later[0]] if later else max(span.end for span in spans if span.step <= shown[-1])
    inside = (
        Span(span.phase, span.what, span.step, max(span.start, start), min(span.end, end))
        for span in spans
        if span.start < end and span.end > start
    )
    return Window(first_step, len(shown), start, end, tuple(inside))


def in_turn(spans: Sequence[Span]) -> list[Span]:
    """Spans by their starts, those of a link clipped to the time in which it carried them.

    A link carries one tensor after the other. The sender's span of a tensor begins when it hands over the first byte,
    which then waits behind the tensor before.
    """
    found: list[Span] = []
    free_at = dict.fromkeys(_IN_TURN, float("-inf"))
    for span in sorted(spans, key=lambda span: (span.start, span.end)):
        if span.phase in free_at:
            start = min(max(span.start, free_at[span.phase]), span.end)
            free_at[span.phase] = max(free_at[span.phase], span.end)
            span = Span(span.phase, span.what, span.step, start, span.end)
        found.append(span)
    return found


def summary(window: Window) -> str:
    """The figures of a window, on one line."""
    shares = ", ".join(f"{LANES[phase]} {window.busy(phase):.0%}" for phase in PHASES)
    return (
        f"steps {window.first_step} to {window.first_step + window.steps - 1}: {window.steps_per_second:.1f} steps/s, "
        f"{window.overlap:.1f} of 4 phases at work at once ({shares})"
    )


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
