"""The judge of arrivals at a worker: every announcement is judged here before memory is taken for it.

No step may come that would be more than K + 1 in flight at this worker, and all that comes of a step is of one batch. Each
channel sees to it that its steps come one after the other.
"""

from shared.errors import ProtocolError
from shared.placement.derived import Crossing
from shared.placement.window import Window


class ArrivalJudge:
    """The judge of what comes to one worker under one placement."""

    def __init__(self, window: Window) -> None:
        """window: of this worker, with nothing under way."""
        self.window = window
        self._placement = window.plan.placement
        self._samples: dict[int, int] = {}
        """Samples of the whole batch, by step of which something has come and that is not known to be done."""
        self._lengths: dict[int, int] = {}
        """Length of the batch, by such step, where batches differ in it."""

    def accept(self, crossing: Crossing, step: int, samples: int, ahead: int = 0) -> None:
        """Agree to what a sender announces of a step.

        samples: of the whole batch. ahead: see `StepPlan.ahead_of`. Raises ProtocolError, and counts nothing, for a step that
        may not come yet, or another batch.
        """
        sender, cargo, index = crossing.sender, crossing.cargo, crossing.index
        latest = self.window.latest + ahead
        if step > latest:
            before = f", samples come {ahead} steps before," if ahead else ""
            raise ProtocolError(
                f"{cargo} {index} of step {step} came from {sender!r}; K is {self._placement.staleness}{before} and step "
                f"{self.window.answered} is not answered, so step {latest} is the latest that may come"
            )
        expected = self._samples.get(step)
        if not 1 <= samples <= self._placement.batch_size or samples != (expected or samples):
            raise ProtocolError(
                f"{cargo} {index} of step {step} came from {sender!r} for a batch of {samples} samples; it has "
                f"{expected or f'1 to {self._placement.batch_size}'}"
            )
        if expected is None:
            self._forget_done()
            self._samples[step] = samples

    def accept_length(self, sender: str, step: int, length: int) -> None:
        """Take note of the length of a batch, by what `sender` announces of it.

        Raises ProtocolError where its step has another one.
        """
        expected = self._lengths.get(step, length)
        if length != expected:
            raise ProtocolError(
                f"a tensor of step {step} came from {sender!r} for a length of {length}; it has {expected}"
            )
        self.note_length(step, length)

    def note_length(self, step: int, length: int) -> None:
        """Take note of the length of a batch, by what this worker sends of it."""
        self._forget_done()
        self._lengths[step] = length

    def _forget_done(self) -> None:
        done = self.window.done
        for known in (self._samples, self._lengths):
            while known and (oldest := next(iter(known))) < done:
                del known[oldest]
