"""The window of a run: the batches between their start and their settling, and how far each of them has come.

Step t starts once step t - K - 1 is settled: a sliding window, where paper 000 (4.1.3) has groups of batches. The counters
here say what may start, what the trainer may send next, what the handshake tells, and what is sent again after a lost link;
nothing else counts. Knows nothing of threads and streams: the pipeline asks, and moves the batches.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

from shared.codec import Encoded
from shared.errors import ProtocolError
from shared.model.features import Features, FeatureSpecs, specs_of
from shared.runtime import ExpectedTensor, ResendBuffer, judge
from shared.transport.stream.framing import TensorKey
from shared.wire.isthmus.v1.tensor_pb2 import Frame, Role
from shared.wire.isthmus.v1.trainer_pb2 import Deployment

AHEAD_WITHOUT_K = 7
"""So many batches may be in flight beside the one that starts, where no gradient comes back and so no K bounds them."""


class Position(NamedTuple):
    """How far the edge has come. All three are the same step while nothing is in flight."""

    gradient_step: int
    """The step whose error gradient comes next."""
    report_step: int
    """The step whose report comes next."""
    forward_step: int
    """The step that is forwarded next."""


@dataclass(slots=True)
class BatchInFlight:
    """One batch on its way, from its start to its settling."""

    step: int
    deployment: Deployment
    """What it was started under, and travels under both ways."""
    labels: Tensor
    specs: FeatureSpecs | None = None
    """Shapes and types of its features, slot by slot; None until it is forwarded."""
    features: Features = ()
    """The features, slot by slot, from the forward until they are encoded."""
    forward_seconds: float = 0.0
    encodings: tuple[Encoded, ...] = ()
    """The encoded features, slot by slot, until all gradients have come. After a lost link they are sent again as they are: a
    codec that draws random numbers would make others."""
    compression_errors: tuple[Tensor | None, ...] = ()
    """What the codec added to each feature, slot by slot; None where the gradient at it is not compensated."""
    gradients: dict[int, Tensor] = field(default_factory=dict)
    """The decoded error gradients by slot, from their arrival until they are applied."""

    @property
    def samples(self) -> int:
        """How many samples it has."""
        return len(self.labels)

    @property
    def gradient_slots(self) -> list[int]:
        """The slots whose error gradients come back, where any come. For a batch that is forwarded."""
        assert self.specs is not None, "the batch is forwarded"
        return [slot for slot, spec in enumerate(self.specs) if spec.differentiable]


class Window:
    """At most K + 1 batches in flight, oldest first: steps [settled, started); AHEAD_WITHOUT_K + 1 where no gradient returns.

    A batch is started, forwarded, sent, answered by error gradients and by a report, and settled: when its gradients are
    applied, or when its report comes where nothing on the edge learns. Each counter is the step to which that happens next.
    """

    def __init__(self, first_step: int = 0) -> None:
        self._batches: ResendBuffer[BatchInFlight] = ResendBuffer()
        self.gradients_return = True
        """Whether error gradients return, and settle the steps; otherwise reports settle them."""
        self.restart(first_step)

    def restart(self, step: int) -> None:
        """Forget every batch in flight, and go on with this step."""
        self._batches.clear()
        self.started = self.forwarded = self.sent = self.settled = step
        self._next_gradient = self._next_announced = self._next_report = step
        self._announced_slots = 0
        """How many gradients of step `_next_announced` are announced already."""

    def begin(self, *, gradients_return: bool) -> None:
        """Begin a stretch of steps, with nothing in flight."""
        assert not self.in_flight
        self.gradients_return = gradients_return
        self.restart(self.started)

    def abandon(self) -> None:
        """Forget what is in flight, because a stretch of steps has failed."""
        self.restart(self.settled)

    @property
    def in_flight(self) -> int:
        """Batches that are started and not settled. Another thread may read one too few, but never one too many."""
        return self.started - self.settled

    @property
    def position(self) -> Position:
        """How far the edge has come, for the handshake."""
        return Position(self._next_gradient, self._next_report, self.forwarded)

    @property
    def features_to_send(self) -> int:
        """Batches that are forwarded and not sent."""
        return max(self.forwarded - self.sent, 0)

    @property
    def gradients_to_apply(self) -> int:
        """Batches whose gradients have come and are not applied."""
        return self._next_gradient - self.settled if self.gradients_return else 0

    def answered(self, stop_step: int) -> bool:
        """Whether the trainer has answered every step before `stop_step`."""
        return self._next_report >= stop_step and (not self.gradients_return or self._next_gradient >= stop_step)

    def all_settled(self, stop_step: int) -> bool:
        """Whether the edge has nothing more to compute for the steps before `stop_step`; reports may still come."""
        return self.started >= stop_step and (not self.gradients_return or self.settled >= stop_step)

    def owed(self) -> int | None:
        """The oldest step whose gradients or report the trainer still owes; None where it owes nothing."""
        oldest = min(self._next_gradient, self._next_report) if self.gradients_return else self._next_report
        return oldest if oldest < self.forwarded else None

    def may_start(self, staleness: int) -> bool:
        """Whether the next batch may start under this limit K."""
        return self.in_flight <= (staleness if self.gradients_return else AHEAD_WITHOUT_K)

    def start(self, deployment: Deployment, labels: Tensor) -> BatchInFlight:
        """Start the next batch."""
        batch = BatchInFlight(self.started, deployment, labels)
        self._batches.keep(self.started, batch)
        self.started += 1
        return batch

    def note_forwarded(self, batch: BatchInFlight, features: Features, seconds: float) -> None:
        """Note that the edge's blocks have computed the features of a batch, in so many seconds."""
        batch.specs, batch.features, batch.forward_seconds = specs_of(features), features, seconds
        self.forwarded = batch.step + 1

    def next_to_send(self) -> BatchInFlight | None:
        """The batch that is sent next, forwarded or not, as its labels go first; None where it has not started."""
        return self._batches[self.sent] if self.sent < self.started else None

    def note_sent(self) -> None:
        """Note that the link has taken all of the batch that `next_to_send` returned."""
        self.sent += 1

    def resume(self, next_step: int) -> None:
        """Begin with a new stream. The trainer waits for `next_step` on it, and sends again what did not arrive."""
        self.sent = next_step
        self._next_announced, self._announced_slots = self._next_gradient, 0
        if self._next_gradient in self._batches:
            self._batches[
                self._next_gradient
            ].gradients.clear()  # some of them were lost, and all of that step come again

    def accept(self, frame: Frame) -> None:
        """Agree to the tensor that a frame announces. Raises as `judge` does. Every stream's assembler asks this."""
        judge(frame, self._expected())
        self._announced_slots += 1
        if self._announced_slots == len(self._batches[self._next_announced].gradient_slots):
            self._next_announced, self._announced_slots = self._next_announced + 1, 0

    def _expected(self) -> ExpectedTensor | None:
        """The error gradient that may be announced next, of the shape and type of its feature; None where none may."""
        step = self._next_announced
        if not self.gradients_return or step >= self.forwarded:
            return None
        batch = self._batches[step]
        assert batch.specs is not None
        deployment, slot = batch.deployment, batch.gradient_slots[self._announced_slots]
        key = TensorKey(step, Role.ROLE_ERROR_GRADIENT, deployment.cut, slot)
        return ExpectedTensor(key, deployment.version, deployment.downlink_codec, batch.specs[slot])

    def take_gradient(self, step: int, slot: int, gradient: Tensor) -> None:
        """Take the decoded error gradient of one slot. Raises ProtocolError for a step that is not the next one."""
        if step != self._next_gradient:
            raise ProtocolError(
                f"the error gradient of step {step} is whole where that of step {self._next_gradient} was expected"
            )
        batch = self._batches[step]
        batch.gradients[slot] = gradient
        if len(batch.gradients) == len(batch.gradient_slots):
            batch.encodings = ()
            self._next_gradient += 1

    def take_report(self, step: int) -> BatchInFlight:
        """Count the report of a step, and return its batch. Raises ProtocolError for any but the report that comes next."""
        if step not in self._batches or step >= self.forwarded:
            raise ProtocolError(f"the trainer speaks of step {step}, which is not in flight")
        if step != self._next_report:
            raise ProtocolError(f"the trainer reports step {step}; the report of step {self._next_report} is expected")
        self._next_report += 1
        batch = self._batches[step]
        if self.gradients_return:
            self._forget_done()
        return batch

    def next_to_apply(self) -> BatchInFlight | None:
        """The batch that is settled next, once all its gradients have come; None before."""
        return self._batches[self.settled] if self.gradients_to_apply else None

    def settle(self, step: int) -> int:
        """Settle the oldest step in flight, which is `step`. Returns its staleness: how many batches have started since."""
        assert step == self.settled < self.started
        self.settled += 1
        self._forget_done()
        return self.started - 1 - step

    def _forget_done(self) -> None:
        """Forget the batches that are settled and reported: none of them is ever sent again."""
        self._batches.forget_before(min(self.settled, self._next_report))
