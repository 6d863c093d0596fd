"""The time line of a run: what each of the four modules did when, both sides on one clock, as a Chrome/Perfetto trace."""

import json
from pathlib import Path

LANES = {
    "edge": "P1 edge compute",
    "codec": "encode",
    "uplink": "P2 uplink",
    "cloud": "P3 cloud compute",
    "downlink": "P4 downlink",
}
"""The module of a span, and its lane in the drawing, from top to bottom."""


class Timeline:
    """Collects spans; times are time.monotonic of the edge."""

    def __init__(self) -> None:
        self._spans: list[tuple[str, str, int, float, float]] = []

    def add(self, module: str, what: str, step: int, start_seconds: float, end_seconds: float) -> None:
        """One module worked on one step."""
        self._spans.append((module, what, step, start_seconds, end_seconds))

    def write(self, path: Path) -> None:
        """Write the trace event format: complete events, in microseconds from the first span."""
        lanes = {module: number for number, module in enumerate(LANES)}
        begin = min((start for *_, start, _ in self._spans), default=0.0)
        names = [
            {"ph": "M", "name": "thread_name", "pid": 1, "tid": lanes[module], "args": {"name": lane}}
            for module, lane in LANES.items()
        ]
        events = [
            {
                "ph": "X",
                "name": f"{what} {step}",
                "cat": module,
                "pid": 1,
                "tid": lanes[module],
                "ts": round((start - begin) * 1e6, 1),
                "dur": round(max(end - start, 0.0) * 1e6, 1),
                "args": {"step": step},
            }
            for module, what, step, start, end in self._spans
        ]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"traceEvents": names + events, "displayTimeUnit": "ms"}))
