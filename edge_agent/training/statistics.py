"""The figures of a run, in one place: metrics, progress bar, status, summary and decisions read them. Knows numbers only.

Used on the event loop. A reader of the run's events fills most of them (`edge_agent.observability.observer`). The run itself
says how many steps it has and when it begins, and takes up the figures of a checkpoint, which cover all its processes.
"""

import time
from collections import deque
from collections.abc import Iterable, Mapping, MutableSequence
from dataclasses import dataclass, field
from typing import Any

from edge_agent.training.events import Activity
from edge_agent.training.history import HistoryRow
from edge_agent.training.step_figures import StepFigure, StepFigures
from shared.placement import Deployment
from shared.telemetry.step_series import Distribution


class RecentMean:
    """The mean of measurements over the last looks of one reader."""

    def __init__(self, looks: int = 1, least_count: int = 1) -> None:
        """least_count: measurements of which the mean says something."""
        self._looks: deque[tuple[float, int]] = deque(maxlen=looks + 1)
        self._least_count = least_count
        self._seconds: Distribution | None = None

    def take(self, seconds: Distribution) -> float | None:
        """Look once more. Returns the mean of the measurements in the last looks; None where there were too few.

        The first look at a distribution has none: it says from where to count.
        """
        if seconds is not self._seconds:
            self.forget()
            self._seconds = seconds
        self._looks.append((seconds.total, seconds.count))
        total, count = (now - before for now, before in zip(self._looks[-1], self._looks[0], strict=True))
        return total / count if count >= self._least_count else None

    def forget(self) -> None:
        """Begin again."""
        self._looks.clear()


class WorkerFigures:
    """The figures of one worker of the placement in force."""

    __slots__ = ("blocks", "blocks_run", "compute", "done_step", "links_lost", "samples")

    def __init__(self, blocks: tuple[str, ...], blocks_run: int = 0, samples: int = 0) -> None:
        self.blocks = blocks
        """Blocks whose weights it has, as ranges: "0:2"."""
        self.blocks_run = blocks_run
        """Number of blocks that it computes with."""
        self.samples = samples
        """Samples of a batch that it computes on: the most with one block."""
        self.done_step = 0
        """First step that it has not done, as far as is known here."""
        self.links_lost = 0
        """Number of times that its links were lost and have come back."""
        self.compute = Distribution()
        """Seconds that it computes for a step."""


_SPENT = ("bytes_up", "bytes_down")
"""Totals that only rise: the cost of a step counts each time that it is done."""
_OF_LOSSES = ("loss_sum", "losses", "row_loss_sum", "row_losses")
_REACHED = ("samples", "skipped", "loss", "accuracy", "test_loss", "metrics", *_OF_LOSSES)
"""Totals that belong to a step, and go back with it."""


@dataclass(slots=True)
class Statistics:
    """The figures of one run. None means not known yet. loss: of the last step. accuracy, test_loss: of the last evaluation."""

    total_steps: int
    session: str = ""
    """Id of the session; empty until one is open."""
    activity: Activity = Activity.OPENING
    waits_because: tuple[str, ...] = ()
    """Sentences that name the trainers that cannot be reached, while the run waits for them."""
    deployment: Deployment = field(default_factory=Deployment)
    """Deployment in force."""
    finished_of_steps: int | None = None
    """Steps that the run would have, had it not been asked to finish before; None if it was not."""
    steps: int = 0
    """Steps that all workers have done so far."""
    samples: int = 0
    """Samples of these steps."""
    moments: MutableSequence[int] = field(default_factory=lambda: [0, 0])
    """Numbers for the next process, should this one be killed; see `edge_agent/sessions/kills.py`."""
    skipped: int | None = None
    """Samples that could not be read in these steps; None where one such ends the run."""
    began_seconds: float | None = None
    """Time at which this process began to train, by time.monotonic."""
    earlier_seconds: float = 0.0
    """Seconds that earlier processes trained, until the checkpoint from which this one continues."""
    is_flowing: bool = False
    """True while steps follow one another. Otherwise the run is drained, for an evaluation or another placement, or a link is
    away."""
    stood_still: bool = False
    """True if steps have stood still since the decisions last looked, because a link between trainers was away."""
    loss: float | None = None
    loss_scale: float | None = None
    skipped_updates: int | None = None
    """Scale of the loss, and the updates that were skipped because gradients overflowed; None where losses are not scaled."""
    accuracy: float | None = None
    test_loss: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Values of `training.metrics` at the last evaluation, by their names; empty before the first."""
    history: list[HistoryRow] = field(default_factory=list)
    """One row an epoch and an evaluation, the newest last."""
    loss_sum: float = 0.0
    losses: int = 0
    """Sum of the losses of the steps since the newest row, and their number."""
    row_loss_sum: float = 0.0
    row_losses: int = 0
    """The same of the steps of the newest row, whose mean may have lost the last bit of the sum."""
    of_steps: StepFigures = field(default_factory=StepFigures)
    """Figures of the newest steps one by one, of a member of a group."""
    staleness: int = 0
    """Staleness of the gradient that was applied last."""
    bytes_up: int = 0
    bytes_down: int = 0
    uplink_bits_per_second: float | None = None
    downlink_bits_per_second: float | None = None
    round_trip_seconds: float | None = None
    workers: dict[str, WorkerFigures] = field(default_factory=dict)
    """Workers by name, nearest first."""
    link_rates: dict[tuple[str, str], float | None] = field(default_factory=dict)
    """Bits per second from one worker to another, both directions of every link."""
    link_trips: dict[tuple[str, str], float | None] = field(default_factory=dict)
    """Seconds there and back, one entry a link that was measured, the worker nearer to the device first."""
    edge: Distribution = field(default_factory=Distribution)
    """T1."""
    encode: Distribution = field(default_factory=Distribution)
    uplink: Distribution = field(default_factory=Distribution)
    """T2."""
    cloud: Distribution = field(default_factory=Distribution)
    """T3."""
    downlink: Distribution = field(default_factory=Distribution)
    """T4."""
    step_time: Distribution = field(default_factory=Distribution)
    """Time from one finished step to the next, while steps follow one another."""

    @property
    def seconds(self) -> float:
        """Return the seconds that the run has trained, in all its processes; 0 before it begins."""
        return self.earlier_seconds + (0.0 if self.began_seconds is None else time.monotonic() - self.began_seconds)

    @property
    def samples_per_second(self) -> float:
        """Return the mean of the whole run; 0 before it begins."""
        return self.samples / self.seconds if self.seconds > 0 else 0.0

    def begin(self) -> None:
        """Begin training in this process, unless it has begun."""
        self.began_seconds = self.began_seconds or time.monotonic()

    def totals(self) -> dict[str, Any]:
        """Return the figures of the whole run until now, as JSON, for a checkpoint of this moment."""
        figures = {name: getattr(self, name) for name in (*_SPENT, *_REACHED)}
        return {"seconds": self.seconds, **figures, "history": list(self.history)}

    def totals_at(self, step: int, rows: Iterable[HistoryRow]) -> dict[str, Any]:
        """Return the figures of a group's member at a step, by these rows up to it, and by those of the steps since."""
        kept = [row for row in rows if row.step <= step]
        totals: dict[str, Any] = {"samples": 0, "skipped": None if self.skipped is None else 0}
        if kept:
            names = ("seconds", "samples", "skipped", "bytes_up", "bytes_down")
            totals = {name: getattr(kept[-1], name) for name in names}
        before, first = ([0, 0] + [row.step for row in kept])[-2:]
        of_row, figures = (list(self.of_steps.between(*steps)) for steps in ((before, first), (first, step)))
        totals["samples"] += sum(figure.samples for figure in figures)
        if totals["skipped"] is not None:
            totals["skipped"] += sum(figure.skipped for figure in figures)
        of_losses = (_sum_of(figures), len(figures), _sum_of(of_row), len(of_row))
        return {**totals, "history": kept, **dict(zip(_OF_LOSSES, of_losses, strict=True))}

    def go_back(self, totals: Mapping[str, Any]) -> None:
        """Continue from a checkpoint with these totals. Costs since then stay counted."""
        for name in _OF_LOSSES:
            setattr(self, name, 0)
        for name in _REACHED:
            setattr(self, name, totals.get(name, getattr(self, name)))
        self.history = [HistoryRow(*row) for row in totals.get("history", self.history)]

    def go_on(self, totals: Mapping[str, Any]) -> None:
        """Continue in this process from a checkpoint of an earlier one, with these totals."""
        self.go_back(totals)
        self.earlier_seconds += totals.get("seconds", 0.0)
        for name in _SPENT:
            setattr(self, name, getattr(self, name) + totals.get(name, 0))

    def add_row(self, row: HistoryRow) -> None:
        """Add the newest row, with the mean of the losses since the one before."""
        mean = self.loss_sum / self.losses if self.losses else None
        self.history.append(row._replace(train_loss=mean))
        self.row_loss_sum, self.row_losses = self.loss_sum, self.losses
        self.loss_sum, self.losses = 0.0, 0

    def take_back_end(self, *, ends_epoch: bool) -> None:
        """Take back what the newest row has because the run ended there: the evaluation, and all where no epoch ends there."""
        last = self.history.pop()
        if ends_epoch:
            self.history.append(last._replace(test_loss=None, accuracy=None, metrics={}))
        else:
            self.loss_sum, self.losses = self.row_loss_sum, self.row_losses

    @property
    def edge_blocks(self) -> int:
        """Count the blocks that the device runs or owns; 0 until a session is open."""
        return self.deployment.edge_blocks


def _sum_of(figures: Iterable[StepFigure]) -> float:
    """Return the sum of the losses, added up step by step as in a run that is not interrupted."""
    total = 0.0
    for figure in figures:
        total += figure.loss
    return total
