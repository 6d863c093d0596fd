"""The time line of a run: the work of each worker and link, all on one clock, as a Chrome/Perfetto trace.

Writes it and reads it back. Knows nothing of its use.
"""

import json
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edge_agent.observability.lanes import BETWEEN_TRAINERS, TIMED, TimelineLane, titles_of
from shared.errors import ConfigError
from shared.files.whole_file import write_whole

MOST_ENTRIES = 250_000
"""The newest that are kept: about 30,000 steps of two workers, and 40 MB of memory."""
PARTS_TOGETHER = "compute"
"""Name of the work of a trainer that computes a step in several parts and waits in between: it reports the begin of the
first part, and the time of all parts together."""


@dataclass(frozen=True, slots=True)
class Span:
    """The work of one worker or link on one step, named by `what`; in seconds since any one moment."""

    lane: TimelineLane
    what: str
    step: int
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class RateNews:
    """The rate of a way between two trainers was heard, at a moment of the same clock."""

    lane: TimelineLane
    at: float
    bits_per_second: float


@dataclass(frozen=True, slots=True)
class RecordedTimeline:
    """A time line: its lanes from top to bottom, and the work that was done in them."""

    lanes: tuple[TimelineLane, ...]
    spans: tuple[Span, ...]
    rates: tuple[RateNews, ...] = ()

    @property
    def titles(self) -> dict[TimelineLane, str]:
        """Return the titles of the lanes, from top to bottom."""
        return titles_of(self.lanes)


class Timeline:
    """Collects the newest entries of a run; times are time.monotonic of the edge."""

    def __init__(self) -> None:
        self._lanes: dict[TimelineLane, TimelineLane] = {}
        """From top to bottom; each by itself, so that all entries have one object."""
        self._entries: deque[Span | RateNews] = deque(maxlen=MOST_ENTRIES)

    def show(self, lanes: Iterable[TimelineLane]) -> None:
        """Add these lanes below the present ones, even if they stay empty."""
        for lane in lanes:
            self._lanes.setdefault(lane, lane)

    def add(self, lane: TimelineLane, what: str, step: int, start_seconds: float, end_seconds: float) -> None:
        """Work on one step in a lane that is shown. Where two clocks put its end before the start, it ends with the start."""
        self._entries.append(Span(self._lanes[lane], what, step, start_seconds, max(start_seconds, end_seconds)))

    def add_rate(self, lane: TimelineLane, at_seconds: float, bits_per_second: float) -> None:
        """The rate of a way between two trainers was heard."""
        self._entries.append(RateNews(self._lanes[lane], at_seconds, bits_per_second))

    def write(self, path: Path) -> None:
        """Write the trace event format: complete events, in microseconds from the first of them. Raises StorageError."""
        titles = titles_of(self._lanes)
        numbers = {lane: number for number, lane in enumerate(titles)}
        begin = min((entry.start for entry in self._entries if isinstance(entry, Span)), default=0.0)
        names = [
            {
                "ph": "M",
                "name": "thread_name",
                "pid": 1,
                "tid": numbers[lane],
                "args": {"name": title, **lane._asdict()},
            }
            for lane, title in titles.items()
        ]
        events = [_event(entry, numbers[entry.lane], begin) for entry in self._entries]
        text = json.dumps({"traceEvents": names + events, "displayTimeUnit": "ms"})
        write_whole(path, lambda scratch: scratch.write_text(text))


def _event(entry: Span | RateNews, number: int, begin: float) -> dict[str, Any]:
    at = {"cat": entry.lane.phase, "pid": 1, "tid": number}
    if isinstance(entry, RateNews):
        rate = {"bits_per_second": entry.bits_per_second}
        return {"ph": "C", "name": entry.lane.of, **at, "ts": round((entry.at - begin) * 1e6, 1), "args": rate}
    return {
        "ph": "X",
        "name": f"{entry.what} {entry.step}",
        **at,
        "ts": round((entry.start - begin) * 1e6, 1),
        "dur": round((entry.end - entry.start) * 1e6, 1),
        "args": {"step": entry.step},
    }


def load(path: Path) -> RecordedTimeline:
    """Load the spans that `Timeline.write` wrote, in its order; seconds from the first span. Raises ConfigError for
    other files.

    Files of versions whose lanes were the phases of two workers are read too.
    """
    try:
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
        named = [event for event in events if event["ph"] == "M" and "of" in event["args"]]
        lanes = {event["tid"]: _lane(event["args"]) for event in named}
        spans = tuple(_span(event, lanes) for event in events if event["ph"] == "X")
        rates = tuple(_rate(event, lanes) for event in events if event["ph"] == "C")
    except OSError as error:
        raise ConfigError(f"time line {path} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        raise ConfigError(
            f"{path} is no time line; it must be a file that `edge-agent run --trace FILE` has written"
        ) from None
    if not spans:
        raise ConfigError(f"time line {path} is empty; the run that wrote it made no step")
    unnamed = sorted({span.lane for span in spans} - set(lanes.values()), key=lambda lane: TIMED.index(lane.phase))
    return RecordedTimeline((*lanes.values(), *unnamed), spans, rates)


def _lane(found: Mapping[str, Any]) -> TimelineLane:
    phase, of, by_reports = (found[field] for field in TimelineLane._fields)
    if phase not in (*TIMED, BETWEEN_TRAINERS) or not isinstance(of, str):
        raise ValueError
    return TimelineLane(str(phase), of, bool(by_reports))


def _span(event: dict[str, Any], lanes: Mapping[int, TimelineLane]) -> Span:
    phase, name, (step,) = event["cat"], event["name"], event["args"].values()
    begin, seconds = (float(event[key]) / 1e6 for key in ("ts", "dur"))
    if phase not in TIMED or not isinstance(name, str) or not isinstance(step, int):
        raise ValueError
    lane = lanes.get(event.get("tid", -1), TimelineLane(str(phase), ""))
    return Span(lane, name.rpartition(" ")[0], step, begin, begin + seconds)


def _rate(event: dict[str, Any], lanes: Mapping[int, TimelineLane]) -> RateNews:
    (bits_per_second,) = event["args"].values()
    return RateNews(lanes[event["tid"]], float(event["ts"]) / 1e6, float(bits_per_second))
