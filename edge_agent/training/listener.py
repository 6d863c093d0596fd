"""What a run tells about itself: its activity, in one word, and its events. The run does not know who listens."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from shared.placement import Deployment, Link, Placement
from shared.transport.stream.duplex import Duplex
from shared.transport.stream.framing import WireTensor
from shared.wire.isthmus.v1.link_pb2 import StepDone


class Activity(Enum):
    """The names are those of `RunState` in protos/isthmus/v1/control.proto, which says what each means."""

    OPENING = auto()
    TRAINING = auto()
    PAUSED = auto()
    EVALUATING = auto()
    MIGRATING = auto()
    AWAY = auto()
    STOPPING = auto()
    FINISHING = auto()
    ENDED = auto()


@dataclass(frozen=True, slots=True)
class StepReport:
    """What all workers together have done in a step."""

    step: int
    loss: float
    """The mean of the batch."""
    compute_seconds: float
    """T3: of the slowest trainer; 0 where there is none."""
    downlink_bits_per_second: float
    """The rate of the slowest link to this device; 0 while nothing is known."""


class RunListener:
    """Ignores every event; a listener overrides the methods for those that it needs.

    Everything is called on the event loop, so it must be quick, and must not raise. Times are time.monotonic, in seconds.
    Arguments are passed by position, so an override may name those that it does not use with an underscore.
    """

    def activity_changed(self, activity: Activity, /) -> None:
        """The run has begun this activity."""

    def waits(self, reasons: tuple[str, ...], /) -> None:
        """The run waits for trainers that cannot be reached, for these reasons; it waits no more where there are none."""

    def attached(self, peer: str, stream: Duplex[Any, Any], /) -> None:
        """A stream that carries tensors is up."""

    def detached(self, peer: str, /) -> None:
        """The stream of training with a trainer has ended or is lost."""

    def link_lost(self, peer: str, /) -> None:
        """The stream of training with a trainer was lost; nobody has ended it."""

    def deployment_changed(self, deployment: Deployment, /) -> None:
        """The trainer holds this deployment now."""

    def placed(self, placement: Placement, links: Sequence[Link], /) -> None:
        """A placement is in force, whose workers are linked so."""

    def worker_done(self, done: StepDone, /) -> None:
        """One worker of the placement has done all of a step."""

    def span(self, phase: str, what: str, step: int, start_seconds: float, end_seconds: float, /) -> None:
        """A thread of this device (phase: edge or codec) has done a piece of work, `what`, for one step."""

    def edge_computed(self, step: int, seconds: float, /) -> None:
        """The device has computed a step. seconds: T1, of forward, backward and update."""

    def gradient_applied(self, step: int, staleness: int, /) -> None:
        """The gradient of a step was applied. staleness: how many steps had started since that one."""

    def uploaded(self, payload_bytes: int, raw_bytes: int, /) -> None:
        """A tensor was handed to the link. raw_bytes: its size before its codec."""

    def delivered(self, peer: str, tensor: WireTensor, seconds: float, receiver_nanoseconds: int, /) -> None:
        """A trainer has a tensor, `seconds` after its first byte left. receiver_nanoseconds: when, by the trainer's clock."""

    def downloaded(self, peer: str, tensor: WireTensor, raw_bytes: int, /) -> None:
        """A tensor has come from the link. raw_bytes: its size after its codec."""

    def step_reported(self, report: StepReport, samples: int, /) -> None:
        """The report of a step has come. samples: of its batch."""

    def drained(self) -> None:
        """Nothing is in flight, and something other than a step comes next."""

    def evaluated(self, accuracy: float | None, loss: float, /) -> None:
        """An evaluation is done. accuracy: None where the loss is not of classes."""

    def checkpoint_taken(self, pause_seconds: float, /) -> None:
        """A checkpoint is being written. pause_seconds: how long training waited for it."""

    def checkpoint_shared(self) -> None:
        """Both sides can go back to the state of this step, or of a few steps ago."""

    def checkpoint_replicated(self) -> None:
        """Other workers have replicas of each trainer's part of the checkpoint that is shared now."""

    def migrated(self, pause_seconds: float, /) -> None:
        """Blocks have moved. pause_seconds: how long training waited for that."""

    def migration_failed(self) -> None:
        """A move of blocks has failed, and each block stays where it was."""

    def replaced(self, trainers: Sequence[str], /) -> None:
        """The run goes on without these trainers, from a checkpoint; others have their blocks."""

    def rolled_back(self, step: int, /) -> None:
        """Both sides have gone back to a checkpoint; training goes on with this step."""


class CurrentActivity:
    """The activity of a run; tells the listener when it changes."""

    def __init__(self, listener: RunListener) -> None:
        self._listener = listener
        self._now = Activity.OPENING

    def begin(self, activity: Activity) -> None:
        """Begin this activity."""
        self._now = activity
        self._listener.activity_changed(activity)

    @contextmanager
    def during(self, activity: Activity) -> Iterator[None]:
        """Have this activity while the `with` block runs, and then the one before."""
        before = self._now
        self.begin(activity)
        try:
            yield
        finally:
            self.begin(before)
