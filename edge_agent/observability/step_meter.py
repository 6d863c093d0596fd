"""What the phases of a run really took, gathered between two looks at it, or of late. Knows numbers only."""

NEWEST_WEIGHT = 0.1
"""Of the newest value in what is shown as of late: about the last ten steps."""


class Mean:
    """The mean of what came since it was last taken."""

    def __init__(self) -> None:
        self._sum, self._count = 0.0, 0

    def add(self, value: float) -> None:
        """One more."""
        self._sum += value
        self._count += 1

    def take(self) -> float | None:
        """The mean, and begin anew; None when nothing came."""
        mean = self._sum / self._count if self._count else None
        self._sum, self._count = 0.0, 0
        return mean


class Recent:
    """A mean that forgets; `value` is None until something came."""

    def __init__(self) -> None:
        self.value: float | None = None

    def add(self, value: float) -> None:
        """One more."""
        self.value = value if self.value is None else self.value + NEWEST_WEIGHT * (value - self.value)


class Figures:
    """What is shown of a run besides its progress; filled by the run's observer, read by the control service."""

    def __init__(self) -> None:
        self.edge, self.uplink, self.cloud, self.downlink = Recent(), Recent(), Recent(), Recent()
        """Seconds: T1, T2, T3 and T4."""
        self.step_seconds = Recent()
        self.staleness = 0
        """Of the gradient that was applied last."""


class StepMeter:
    """Filled by the run's observer, read by the decision loop, both on the event loop."""

    def __init__(self) -> None:
        self.steps = 0
        """Settled so far."""
        self.is_flowing = False
        """Steps follow one another; otherwise the run is drained, for an evaluation or because blocks move."""
        self.compute_seconds, self.encode_seconds, self.cloud_seconds = Mean(), Mean(), Mean()
        self.uplink_bits_per_second: float | None = None
        self.downlink_bits_per_second: float | None = None
        self.round_trip_seconds: float | None = None

    @property
    def knows_the_link(self) -> bool:
        """Whether training has been enough for the link to show what it carries, each way."""
        return self.uplink_bits_per_second is not None and self.downlink_bits_per_second is not None
