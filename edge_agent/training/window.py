"""The window of a run: the batches between their start and their settling, and how far each part of their way has come.

Step t starts once step t - K - 1 is settled: a sliding window, where paper 000 (4.1.3) has groups of batches. What may
start, what the trainer may send next, what the handshake says and what is sent again after a lost link all follow from the
counters here; nothing else counts. Knows nothing of threads and streams: the pipeline asks, and moves the batches.
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

FROZEN_LIMIT = 7
"""Batches that may be ahead of the trainer's report where no gradient comes back and so no K bounds them."""


class Position(NamedTuple):
    """How far the edge has come; the same step three times where nothing is in flight."""

    gradient: int
    """The step of the gradient that comes next."""
    report: int
    """The step of the report that comes next."""
    forward: int
    """The batch that is forwarded next."""


@dataclass(slots=True)
class BatchInFlight:
    """One batch on its way: the deployment that it was started under, and what its settling needs."""

    step: int
    deployment: Deployment
    labels: Tensor
    specs: FeatureSpecs | None = None
    """What the edge's blocks made of it; None until they have."""
    features: Features = ()
    """The tensors themselves, until they are encoded."""
    forward_seconds: float = 0.0
    encodings: tuple[Encoded, ...] = ()
    """What is sent, slot by slot, kept until the gradients have come: it may have to be sent again, and a codec may draw random
    numbers."""
    compression_errors: tuple[Tensor | None, ...] = ()
    """What the codec did to each feature, where the gradient at it is to be compensated."""
    gradients: dict[int, Tensor] = field(default_factory=dict)
    """Decoded, by slot, from their arrival until they are applied."""

    @property
    def samples(self) -> int:
        """How many samples it has."""
        return len(self.labels)

    @property
    def gradient_slots(self) -> list[int]:
        """The slots whose error gradients come back, if any come."""
        assert self.specs is not None, "asked for what was forwarded"
        return [slot for slot, spec in enumerate(self.specs) if spec.differentiable]


class Window:
    """At most K + 1 batches in flight, oldest first: steps [settled, started); FROZEN_LIMIT + 1 where no gradient returns.

    A batch is started, forwarded, sent, answered by an error gradient and by a report, and settled: by its gradient when
    that is applied, or by its report where nothing on the edge learns. Each counter names the step that is next.
    """

    def __init__(self, first_step: int = 0) -> None:
        self._batches: ResendBuffer[BatchInFlight] = ResendBuffer()
        self.gradients_return = True
        """Whether error gradients return and settle the steps, and not reports."""
        self.restart(first_step)

    def restart(self, step: int) -> None:
        """Go on with this step, and forget every batch in flight."""
        self._batches.clear()
        self.started = self.forwarded = self.sent = self.settled = step
        self._gradient = self._announced_gradient = self._report = step
        self._announced_slots = 0
        """How many gradients of the step that is announced next are announced already."""

    def begin(self, *, gradients_return: bool) -> None:
        """A stretch of steps begins, with nothing in flight."""
        assert not self.in_flight
        self.gradients_return = gradients_return
        self.restart(self.started)

    def abandon(self) -> None:
        """A stretch of steps has failed: forget what was in flight."""
        self.restart(self.settled)

    @property
    def in_flight(self) -> int:
        """Batches that are started and not settled. Another thread may read one too few, and never one too many."""
        return self.started - self.settled

    @property
    def position(self) -> Position:
        """What the handshake says of the edge."""
        return Position(self._gradient, self._report, self.forwarded)

    @property
    def to_send(self) -> int:
        """Features that wait for the link."""
        return max(self.forwarded - self.sent, 0)

    @property
    def to_apply(self) -> int:
        """Gradients that have come and are not applied."""
        return self._gradient - self.settled if self.gradients_return else 0

    def answered(self, stop_step: int) -> bool:
        """Whether the trainer has said all that is expected of the steps before `stop_step`."""
        return self._report >= stop_step and (not self.gradients_return or self._gradient >= stop_step)

    def all_settled(self, stop_step: int) -> bool:
        """Whether the edge has done all that is expected of the steps before `stop_step`; reports may still come."""
        return self.started >= stop_step and (not self.gradients_return or self.settled >= stop_step)

    def owed(self) -> int | None:
        """The oldest step that the trainer has still to say something of; None where there is none."""
        oldest = min(self._gradient, self._report) if self.gradients_return else self._report
        return oldest if oldest < self.forwarded else None

    def may_start(self, staleness: int) -> bool:
        """Whether the next batch may start under this limit K."""
        return self.in_flight <= (staleness if self.gradients_return else FROZEN_LIMIT)

    def start(self, deployment: Deployment, labels: Tensor) -> BatchInFlight:
        """The next batch starts."""
        batch = BatchInFlight(self.started, deployment, labels)
        self._batches.keep(self.started, batch)
        self.started += 1
        return batch

    def note_forwarded(self, batch: BatchInFlight, features: Features, seconds: float) -> None:
        """The edge's blocks have made `features` of a batch, which took them so long."""
        batch.specs, batch.features, batch.forward_seconds = specs_of(features), features, seconds
        self.forwarded = batch.step + 1

    def next_to_send(self) -> BatchInFlight | None:
        """The batch whose labels are sent next, and its feature once it is forwarded; None where it has not started."""
        return self._batches[self.sent] if self.sent < self.started else None

    def note_sent(self) -> None:
        """The batch that is sent next has been handed to the link."""
        self.sent += 1

    def resume(self, next_step: int) -> None:
        """A new stream begins, on which the trainer waits for this step and sends again what it has not delivered."""
        self.sent = next_step
        self._announced_gradient, self._announced_slots = self._gradient, 0
        if self._gradient in self._batches:
            self._batches[self._gradient].gradients.clear()  # the others of that step were lost, and all come again

    def accept(self, frame: Frame) -> None:
        """Agree to a tensor that the trainer announces, or raise ProtocolError; the assembler of every stream asks this."""
        judge(frame, self._expected())
        self._announced_slots += 1
        if self._announced_slots == len(self._batches[self._announced_gradient].gradient_slots):
            self._announced_gradient, self._announced_slots = self._announced_gradient + 1, 0

    def _expected(self) -> ExpectedTensor | None:
        """The error gradient that is not announced yet, of the oldest batch that has one, as the feature went up."""
        step = self._announced_gradient
        if not self.gradients_return or step >= self.forwarded:
            return None
        batch = self._batches[step]
        assert batch.specs is not None
        deployment, slot = batch.deployment, batch.gradient_slots[self._announced_slots]
        key = TensorKey(step, Role.ROLE_ERROR_GRADIENT, deployment.cut, slot)
        return ExpectedTensor(key, deployment.version, deployment.downlink_codec, batch.specs[slot])

    def take_gradient(self, step: int, slot: int, gradient: Tensor) -> None:
        """An error gradient of a step has come and is decoded. Raises ProtocolError out of turn."""
        if step != self._gradient:
            raise ProtocolError(
                f"the error gradient of step {step} is whole where that of step {self._gradient} was expected"
            )
        batch = self._batches[step]
        batch.gradients[slot] = gradient
        if len(batch.gradients) == len(batch.gradient_slots):
            batch.encodings = ()
            self._gradient += 1

    def take_report(self, step: int) -> BatchInFlight:
        """The report of a step has come; returns its batch. Raises ProtocolError for any but the one that is expected."""
        if step not in self._batches or step >= self.forwarded:
            raise ProtocolError(f"the trainer speaks of step {step}, which is not in flight")
        if step != self._report:
            raise ProtocolError(f"the trainer reports step {step}; the report of step {self._report} is expected")
        self._report += 1
        batch = self._batches[step]
        if self.gradients_return:
            self._forget_done()
        return batch

    def next_to_apply(self) -> BatchInFlight | None:
        """The batch that is settled next, when its gradients have come."""
        return self._batches[self.settled] if self.to_apply else None

    def settle(self, step: int) -> int:
        """Settle the oldest step in flight, which is `step`; returns its staleness: the batches that have started since."""
        assert step == self.settled < self.started
        self.settled += 1
        self._forget_done()
        return self.started - 1 - step

    def _forget_done(self) -> None:
        """Forget the batches that are settled and reported: none of them can have to be sent again."""
        self._batches.forget_before(min(self.settled, self._report))
