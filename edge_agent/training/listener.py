"""What a run tells of itself, and what it is doing in one word. Whoever listens knows the run; the run knows no listener."""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum, auto

from shared.client.training_call import Stream
from shared.transport.stream.framing import WireTensor
from shared.wire.isthmus.v1.trainer_pb2 import Deployment, StepReport


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


class RunListener:
    """Hears nothing; a listener overrides what it wants to hear.

    Everything is called on the event loop, so it must be quick, and must not raise. Times are time.monotonic, in seconds.
    Arguments are passed by position, so an override may name those that it does not use with an underscore.
    """

    def activity_changed(self, activity: Activity, /) -> None:
        """The run does this from now on."""

    def trainer_away(self, away: bool, /) -> None:
        """The run begins, or ceases, to wait for a trainer that cannot be reached."""

    def attached(self, stream: Stream, /) -> None:
        """A training stream is attached."""

    def detached(self) -> None:
        """The training stream has ended, or was lost."""

    def deployment_changed(self, deployment: Deployment, /) -> None:
        """The trainer holds this deployment now."""

    def span(self, phase: str, what: str, step: int, start_seconds: float, end_seconds: float, /) -> None:
        """A phase (edge, uplink, cloud, downlink or codec) worked on one step, as `what` says."""

    def edge_computed(self, step: int, seconds: float, /) -> None:
        """T1 of a step: its forward, and its backward with update."""

    def gradient_applied(self, step: int, staleness: int, /) -> None:
        """The gradient of a step was applied so many steps late."""

    def uploaded(self, payload_bytes: int, raw_bytes: int, /) -> None:
        """A tensor was handed to the link; raw_bytes: before its codec."""

    def delivered(self, tensor: WireTensor, seconds: float, receiver_nanoseconds: int, /) -> None:
        """The trainer has a tensor that was sent: since its first byte left, and when, by the trainer's clock."""

    def downloaded(self, tensor: WireTensor, raw_bytes: int, /) -> None:
        """A tensor has come from the link."""

    def step_reported(self, report: StepReport, samples: int, /) -> None:
        """The trainer has done its part of a step."""

    def drained(self) -> None:
        """Nothing is in flight; what comes next is no step."""

    def evaluated(self, accuracy: float | None, loss: float, /) -> None:
        """An evaluation is done. accuracy: None where the loss is not of classes."""

    def checkpoint_taken(self, pause_seconds: float, /) -> None:
        """A checkpoint is being written; training stood still for so long."""

    def checkpoint_shared(self) -> None:
        """Both sides have the state of now, or of a few steps ago."""

    def migrated(self, pause_seconds: float, /) -> None:
        """The cut was moved; training stood still for so long."""

    def migration_failed(self) -> None:
        """The cut was to be moved and stayed."""

    def rolled_back(self, step: int, /) -> None:
        """Training goes on from a checkpoint of both sides, with this step."""


class CurrentActivity:
    """What the run is doing, told when it changes."""

    def __init__(self, listener: RunListener) -> None:
        self._listener = listener
        self._now = Activity.OPENING

    def begin(self, activity: Activity) -> None:
        """Do this from now on."""
        self._now = activity
        self._listener.activity_changed(activity)

    @contextmanager
    def during(self, activity: Activity) -> Iterator[None]:
        """Do this while the block runs, and then what was done before."""
        before = self._now
        self.begin(activity)
        try:
            yield
        finally:
            self.begin(before)
