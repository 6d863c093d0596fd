"""The figures of a run, in one place: metrics, progress bar, status, summary and decisions read them. Knows numbers only.

A reader of the run's events fills them (`edge_agent.observability.observer`), on the event loop. Those of the whole run go with
its checkpoints, so that they are of all processes that it had.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from edge_agent.training.events import Activity
from shared.placement import Deployment

NEWEST_WEIGHT = 0.1
"""The weight of the newest value in a recent mean, which then covers about the last ten steps."""


class Timing:
    """How long one kind of work takes: in total, and recently."""

    __slots__ = ("count", "recent", "total")

    def __init__(self) -> None:
        self.total, self.count = 0.0, 0
        """Seconds in total, and how many measurements they are from."""
        self.recent: float | None = None
        """An exponential moving average, in seconds; None before the first measurement."""

    def add(self, seconds: float) -> None:
        """Add one measurement."""
        self.total += seconds
        self.count += 1
        self.recent = seconds if self.recent is None else self.recent + NEWEST_WEIGHT * (seconds - self.recent)


class MeanSince:
    """The mean of the measurements since one reader asked last."""

    def __init__(self, timing: Timing) -> None:
        self.timing = timing
        self._total, self._count = timing.total, timing.count

    def take(self) -> float | None:
        """The mean in seconds, counted again from here; None without a measurement."""
        total, count = self.timing.total - self._total, self.timing.count - self._count
        self._total, self._count = self.timing.total, self.timing.count
        return total / count if count else None


class WorkerFigures:
    """What is known of one worker of the placement in force."""

    __slots__ = ("blocks", "compute", "done_step")

    def __init__(self, blocks: tuple[str, ...]) -> None:
        self.blocks = blocks
        """The blocks whose weights it has, as ranges: "0:2"."""
        self.done_step = 0
        """It has done all steps before this one, as far as it is known here."""
        self.compute = Timing()
        """How long it computes for a step."""


_SPENT = ("bytes_up", "bytes_down")
"""Totals that only rise: what a step took counts each time that it is done."""
_REACHED = ("samples", "loss", "accuracy", "test_loss")
"""Totals that belong to a step, and go back with it."""


@dataclass(slots=True)
class Statistics:
    """The figures of one run; None means not known yet. loss: of the last step. accuracy, test_loss: of the last evaluation."""

    total_steps: int
    session: str = ""
    """The id of the session; empty until one is open."""
    activity: Activity = Activity.OPENING
    waits_because: tuple[str, ...] = ()
    """Sentences that name the trainers that cannot be reached, while the run waits for them."""
    deployment: Deployment = field(default_factory=Deployment)
    """The deployment that the trainer holds."""
    steps: int = 0
    """Steps that the trainer has reported so far."""
    samples: int = 0
    """Samples of these steps."""
    began_seconds: float | None = None
    """When this process began to train, by time.monotonic."""
    earlier_seconds: float = 0.0
    """How long earlier processes trained, until the checkpoint that this one goes on from."""
    is_flowing: bool = False
    """Whether steps follow one another; otherwise the run is drained, for an evaluation or another placement."""
    loss: float | None = None
    accuracy: float | None = None
    test_loss: float | None = None
    staleness: int = 0
    """The staleness of the gradient that was applied last."""
    bytes_up: int = 0
    bytes_down: int = 0
    uplink_bits_per_second: float | None = None
    downlink_bits_per_second: float | None = None
    round_trip_seconds: float | None = None
    workers: dict[str, WorkerFigures] = field(default_factory=dict)
    """By name, nearest first."""
    link_rates: dict[tuple[str, str], float | None] = field(default_factory=dict)
    """Bits per second from one worker to another, both directions of every link."""
    edge: Timing = field(default_factory=Timing)
    """T1."""
    encode: Timing = field(default_factory=Timing)
    uplink: Timing = field(default_factory=Timing)
    """T2."""
    cloud: Timing = field(default_factory=Timing)
    """T3."""
    downlink: Timing = field(default_factory=Timing)
    """T4."""
    step_time: Timing = field(default_factory=Timing)
    """The time from one finished step to the next, while steps follow one another."""

    @property
    def seconds(self) -> float:
        """How long the run has trained, in all its processes; 0 before it begins."""
        return self.earlier_seconds + (0.0 if self.began_seconds is None else time.monotonic() - self.began_seconds)

    @property
    def samples_per_second(self) -> float:
        """The mean of the whole run; 0 before it begins."""
        return self.samples / self.seconds if self.seconds > 0 else 0.0

    def begin(self) -> None:
        """Training begins in this process, unless it has begun."""
        self.began_seconds = self.began_seconds or time.monotonic()

    def totals(self) -> dict[str, Any]:
        """The figures of the whole run until now, as JSON, for a checkpoint of this moment."""
        return {"seconds": self.seconds, **{name: getattr(self, name) for name in (*_SPENT, *_REACHED)}}

    def go_back(self, totals: Mapping[str, Any]) -> None:
        """Training goes on from a checkpoint with these totals. What was spent since stays counted."""
        for name in _REACHED:
            setattr(self, name, totals.get(name, getattr(self, name)))

    def go_on(self, totals: Mapping[str, Any]) -> None:
        """Training goes on in this process from a checkpoint of an earlier one, with these totals."""
        self.go_back(totals)
        self.earlier_seconds += totals.get("seconds", 0.0)
        for name in _SPENT:
            setattr(self, name, getattr(self, name) + totals.get(name, 0))

    @property
    def edge_blocks(self) -> int:
        """Blocks that the device runs or owns; 0 until a session is open."""
        return self.deployment.edge_blocks

    @property
    def knows_the_link(self) -> bool:
        """Whether enough has crossed the link in both directions to know its rates."""
        return self.uplink_bits_per_second is not None and self.downlink_bits_per_second is not None
