"""The figures of a run, kept once: metrics, progress bar, status, summary and decisions read them. Knows numbers only.

Filled by what listens to the run (`edge_agent.observability.observer`), on the event loop.
"""

from dataclasses import dataclass, field

from edge_agent.training.listener import Activity
from shared.wire.isthmus.v1.trainer_pb2 import Deployment

NEWEST_WEIGHT = 0.1
"""The weight of the newest value in a recent mean, which then covers about the last ten steps."""


class Timing:
    """What one kind of work took: in all, and recently."""

    __slots__ = ("count", "recent", "total")

    def __init__(self) -> None:
        self.total, self.count = 0.0, 0
        """Seconds, and how often they were measured."""
        self.recent: float | None = None
        """A mean, in seconds, that forgets; None until something came."""

    def add(self, seconds: float) -> None:
        """One more."""
        self.total += seconds
        self.count += 1
        self.recent = seconds if self.recent is None else self.recent + NEWEST_WEIGHT * (seconds - self.recent)


class MeanSince:
    """The mean of what came to a timing since it was last taken, for one reader."""

    def __init__(self, timing: Timing) -> None:
        self._timing = timing
        self._total, self._count = timing.total, timing.count

    def take(self) -> float | None:
        """The mean, and begin again; None when nothing came."""
        total, count = self._timing.total - self._total, self._timing.count - self._count
        self._total, self._count = self._timing.total, self._timing.count
        return total / count if count else None


@dataclass(slots=True)
class Statistics:
    """Where a run is. What is None is not known yet; loss: of the last step; accuracy, test_loss: of the last evaluation."""

    total_steps: int
    session: str = ""
    """Empty until one is open."""
    activity: Activity = Activity.OPENING
    is_away: bool = False
    """The run waits for a trainer that cannot be reached."""
    is_attached: bool = False
    deployment: Deployment = field(default_factory=Deployment)
    """What the trainer holds."""
    steps: int = 0
    """Those that the trainer has reported so far."""
    samples: int = 0
    is_flowing: bool = False
    """Steps follow one another; otherwise the run is drained, for an evaluation or because blocks move."""
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
    def cut(self) -> int:
        """Blocks that run on the edge; 0 until a session is open."""
        return self.deployment.cut

    @property
    def knows_the_link(self) -> bool:
        """Whether training has been enough for the link to show what it carries, each way."""
        return self.uplink_bits_per_second is not None and self.downlink_bits_per_second is not None
