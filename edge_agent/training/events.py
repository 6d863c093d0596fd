"""The events of a run, beside those of its workers (`shared.events`), and its activity in one word."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

from edge_agent.config import EdgeConfig
from edge_agent.coordinator import Coordinator, Phase
from edge_agent.training.choosers import Chooser
from edge_agent.training.history import HistoryRow
from shared.events import Emit, Event
from shared.placement import Deployment, Link, Placement
from shared.transport.stream.duplex import Duplex

if TYPE_CHECKING:
    from edge_agent.training.result import Summary
    from edge_agent.training.statistics import Statistics
    from edge_agent.training.training_run import TrainingRun


class Activity(Enum):
    """Activities of a run. The names are those of `RunState` in protos/isthmus/v1/control.proto, which explains each."""

    OPENING = auto()
    JOINING = auto()
    TRAINING = auto()
    PAUSED = auto()
    EVALUATING = auto()
    MIGRATING = auto()
    AWAY = auto()
    STOPPING = auto()
    FINISHING = auto()
    ENDED = auto()


_ACTIVITIES = {
    Phase.JOINING: Activity.JOINING,
    Phase.TRAINING: Activity.TRAINING,
    Phase.CHANGING: Activity.MIGRATING,
    Phase.ENDING: Activity.FINISHING,
}


@dataclass(frozen=True, slots=True)
class Prepared(Event):
    """The workload of the run is known."""

    run_id: str
    """Name of the run in the logs of all its processes."""
    config: EdgeConfig


@dataclass(frozen=True, slots=True)
class SessionOpened(Event):
    """Training is about to begin, or to begin again in another session."""

    run: "TrainingRun"


@dataclass(frozen=True, slots=True)
class ActivityChanged(Event):
    """The run has begun another activity."""

    activity: Activity


@dataclass(frozen=True, slots=True)
class Placed(Event):
    """A placement is in force at all workers."""

    placement: Placement
    links: Sequence[Link]
    deployment: Deployment
    """The same in few numbers."""


@dataclass(frozen=True, slots=True)
class LinkUp(Event):
    """The link of training to a trainer is up."""

    peer: str
    stream: Duplex[Any, Any]


@dataclass(frozen=True, slots=True)
class LinkDown(Event):
    """The link of training to a trainer has ended or is lost."""

    peer: str


@dataclass(frozen=True, slots=True)
class LinkLost(Event):
    """The link of training to a trainer has ended with an error: it was lost, refused or damaged, or the trainer has failed.
    It may be dialled again."""

    peer: str


@dataclass(frozen=True, slots=True)
class StepFinished(Event):
    """All workers have done a step."""

    step: int
    samples: int
    loss: float
    """Mean of the batch."""
    compute_seconds: float
    """T3 of the slowest trainer; 0 if there is none."""
    downlink_bits_per_second: float
    """Rate of the slowest link to this device; 0 while nothing is known."""
    loss_scale: float | None = None
    """Scale of the loss after the last update; None where losses are not scaled."""
    skipped_updates: int | None = None
    """Count of the updates that were skipped because gradients overflowed; None where losses are not scaled."""


@dataclass(frozen=True, slots=True)
class Progressed(Event):
    """The figures of the run have changed: by a step, an evaluation, or a session."""

    statistics: "Statistics"
    """Figures of the run: the same object each time."""


@dataclass(frozen=True, slots=True)
class Finishing(Event):
    """The step before this boundary is the last one of the run, though its configuration may have more."""


@dataclass(frozen=True, slots=True)
class Drained(Event):
    """Nothing is in flight, and work other than a step comes next."""


@dataclass(frozen=True, slots=True)
class Evaluated(Event):
    """The model was evaluated on the test set."""

    step: int
    """Steps that were done."""
    accuracy: float | None
    """Share of correct samples; None if the loss is not of classes."""
    loss: float
    metrics: Mapping[str, float]
    """Values of `training.metrics`, by their names."""


@dataclass(frozen=True, slots=True)
class RowAdded(Event):
    """The history of the run has another row, or, in place of its newest one, the same with an evaluation."""

    row: HistoryRow


@dataclass(frozen=True, slots=True)
class CheckpointTaken(Event):
    """A checkpoint is being written."""

    pause_seconds: float
    """Time that training waited for it."""


@dataclass(frozen=True, slots=True)
class CheckpointShared(Event):
    """All workers can go back to the state of this step, or of a few steps ago."""

    is_replicated: bool
    """True if other workers have replicas of each trainer's part."""
    placement: Placement
    """Placement under which it was taken."""


@dataclass(frozen=True, slots=True)
class Migrated(Event):
    """Blocks have moved."""

    pause_seconds: float
    """Time that training waited for the move."""


@dataclass(frozen=True, slots=True)
class HandedOver(Event):
    """A trainer that had no blocks has those of another one, which has none any more."""

    by: Chooser
    pause_seconds: float
    """Time that training waited for it."""


@dataclass(frozen=True, slots=True)
class MigrationFailed(Event):
    """A move of blocks has failed, and each block stays at its place."""


@dataclass(frozen=True, slots=True)
class Replaced(Event):
    """The run continues without these trainers, from a checkpoint. Others have their blocks."""

    trainers: Sequence[str]


@dataclass(frozen=True, slots=True)
class StoodIn(Event):
    """Trainers have begun in the place of others that are away, and no worker went back."""

    by: Mapping[str, str]
    """Trainers that stand in, by the worker whose name they bear until the next boundary."""


@dataclass(frozen=True, slots=True)
class Relayed(Event):
    """Some trainers, and no others, are reached through another one from now on."""

    through: Mapping[str, str]
    """The trainer on the way, by the trainer that is reached."""


@dataclass(frozen=True, slots=True)
class RolledBack(Event):
    """All workers have gone back to a checkpoint."""

    step: int
    """The step that comes next."""


@dataclass(frozen=True, slots=True)
class BeganAgain(Event):
    """Nothing of the steps so far was kept: training goes on from the first, in a new session."""


@dataclass(frozen=True, slots=True)
class Ended(Event):
    """Nothing more comes of the run in this process."""

    summary: "Summary | None"
    """Figures of the whole run; None if it has failed or was stopped."""
    failure: str | None = None
    """Reason of that, as a sentence."""


TOLD: tuple[type[Event], ...] = (
    Prepared,
    ActivityChanged,
    Placed,
    LinkLost,
    StepFinished,
    Evaluated,
    RowAdded,
    CheckpointTaken,
    CheckpointShared,
    Migrated,
    HandedOver,
    MigrationFailed,
    Replaced,
    StoodIn,
    Relayed,
    RolledBack,
    BeganAgain,
    Ended,
)
"""Events that callbacks are told, on other threads: what they have does not change. `isthmus` has them."""


class CurrentActivity:
    """The activity of a run, with an event when it changes: the phase of the run, or what it does at a boundary."""

    def __init__(self, coordinator: Coordinator, emit: Emit) -> None:
        self._coordinator = coordinator
        self._emit = emit
        coordinator.watch(self._begin)

    def _begin(self, phase: Phase) -> None:
        self._emit(ActivityChanged(_ACTIVITIES[phase]))

    @contextmanager
    def during(self, activity: Activity) -> Iterator[None]:
        """Have this activity while the body runs, and then that of the phase."""
        self._emit(ActivityChanged(activity))
        try:
            yield
        finally:
            self._begin(self._coordinator.state.phase)
