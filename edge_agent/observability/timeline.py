"""The time line of a run: what each of the four phases did when, both sides on one clock, as a Chrome/Perfetto trace.

Writes it and reads it back. Knows nothing of what is made of it.
"""

import json
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared.errors import ConfigError
from shared.files.whole_file import write_whole

LANES = {
    "edge": "P1 edge compute",
    "codec": "encode",
    "uplink": "P2 uplink",
    "cloud": "P3 cloud compute",
    "downlink": "P4 downlink",
}
"""The phase of a span, and its lane in the drawing, from top to bottom."""


MOST_SPANS = 250_000
"""The newest that are kept: about 40,000 steps and 40 MB of memory."""


@dataclass(frozen=True, slots=True)
class Span:
    """One phase worked on one step, as `what` says; in seconds since any one moment."""

    phase: str
    what: str
    step: int
    start: float
    end: float


class Timeline:
    """Collects the newest spans of a run; times are time.monotonic of the edge."""

    def __init__(self) -> None:
        self._spans: deque[Span] = deque(maxlen=MOST_SPANS)

    def add(self, phase: str, what: str, step: int, start_seconds: float, end_seconds: float) -> None:
        """One phase worked on one step. An end before the start, by an error of two clocks, is taken for the start."""
        self._spans.append(Span(phase, what, step, start_seconds, max(start_seconds, end_seconds)))

    def write(self, path: Path) -> None:
        """Write the trace event format: complete events, in microseconds from the first span. Raises StorageError."""
        lanes = {phase: number for number, phase in enumerate(LANES)}
        begin = min((span.start for span in self._spans), default=0.0)
        names = [
            {"ph": "M", "name": "thread_name", "pid": 1, "tid": lanes[phase], "args": {"name": lane}}
            for phase, lane in LANES.items()
        ]
        events = [
            {
                "ph": "X",
                "name": f"{span.what} {span.step}",
                "cat": span.phase,
                "pid": 1,
                "tid": lanes[span.phase],
                "ts": round((span.start - begin) * 1e6, 1),
                "dur": round((span.end - span.start) * 1e6, 1),
                "args": {"step": span.step},
            }
            for span in self._spans
        ]
        text = json.dumps({"traceEvents": names + events, "displayTimeUnit": "ms"})
        write_whole(path, lambda scratch: scratch.write_text(text))


def load(path: Path) -> list[Span]:
    """The spans that `Timeline.write` wrote, in their order; seconds from the first. Raises ConfigError for other files."""
    try:
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
        spans = [_span(event) for event in events if event["ph"] == "X"]
    except OSError as error:
        raise ConfigError(f"time line {path} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        raise ConfigError(
            f"{path} is no time line; it must be a file that `edge-agent run --trace FILE` has written"
        ) from None
    if not spans:
        raise ConfigError(f"time line {path} is empty; the run that wrote it made no step")
    return spans


def _span(event: dict[str, Any]) -> Span:
    phase, name, (step,) = event["cat"], event["name"], event["args"].values()
    begin, seconds = (float(event[key]) / 1e6 for key in ("ts", "dur"))
    if phase not in LANES or not isinstance(name, str) or not isinstance(step, int):
        raise ValueError
    return Span(str(phase), name.rpartition(" ")[0], step, begin, begin + seconds)
