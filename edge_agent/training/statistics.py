"""The figures of a run, in one place: metrics, progress bar, status, summary and decisions read them. Knows numbers only.

The listener of the run fills them (`edge_agent.observability.observer`), on the event loop.
"""

from dataclasses import dataclass, field

from edge_agent.training.listener import Activity
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
    is_flowing: bool = False
    """Whether steps follow one another; otherwise the run is drained, for an evaluation or another placement."""
    loss: float = float("nan")
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
    step: Timing = field(default_factory=Timing)
    """The time from one finished step to the next, while steps follow one another."""

    @property
    def edge_blocks(self) -> int:
        """Blocks that the device runs or owns; 0 until a session is open."""
        return self.deployment.edge_blocks

    @property
    def knows_the_link(self) -> bool:
        """Whether enough has crossed the link in both directions to know its rates."""
        return self.uplink_bits_per_second is not None and self.downlink_bits_per_second is not None
