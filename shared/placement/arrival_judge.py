"""The judge of arrivals at a worker: every announcement is judged here before memory is taken for it.

Each crossing brings its steps one after the other, and no step may come that would be more than K + 1 in flight at this
worker. Derived from the programs, so that it can judge every possible placement.
"""

from shared.errors import ProtocolError
from shared.placement.derived import Crossing
from shared.placement.programs import Receive
from shared.placement.window import Window


class ArrivalJudge:
    """The judge of what comes to one worker under one placement."""

    def __init__(self, window: Window) -> None:
        """window: of this worker, with nothing under way."""
        self.window = window
        self._placement = window.plan.placement
        program = window.plan.program(window.worker)
        self._next_steps = {one.crossing: window.first_of(one.crossing) for one in program if isinstance(one, Receive)}
        self._samples: dict[int, int] = {}
        """Samples of the whole batch, by step of which something has come and that is not known to be done."""
        self._lengths: dict[int, int] = {}
        """Length of the batch, by such step, where batches differ in it."""

    @property
    def expected(self) -> tuple[Crossing, ...]:
        """All that comes to this worker in a step."""
        return tuple(self._next_steps)

    def accept(self, crossing: Crossing, step: int, samples: int) -> None:
        """Count a crossing as arrived, which its sender announces.

        samples: of the whole batch of this step. Raises ProtocolError, and counts nothing, for a forbidden one.
        """
        sender, cargo, index = crossing.sender, crossing.cargo, crossing.index
        if (next_step := self._next_steps.get(crossing)) is None:
            raise ProtocolError(f"{cargo} {index} came from {sender!r}, who has none to send under this placement")
        if step != next_step:
            raise ProtocolError(f"{cargo} {index} of step {step} came from {sender!r}; step {next_step} is next")
        latest = self.window.latest_of(crossing)
        if step > latest:
            plan = self.window.plan
            before = f", samples come {plan.samples_ahead} steps before," if crossing in plan.sent_ahead else ""
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
        self._forget_done()
        self._samples[step] = samples
        self._next_steps[crossing] = step + 1

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

    def again(self, crossing: Crossing, step: int) -> None:
        """Expect this crossing to come again from `step` on, because its later tensors are lost."""
        self._next_steps[crossing] = step

    def _forget_done(self) -> None:
        done = self.window.done
        for known in (self._samples, self._lengths):
            while known and (oldest := next(iter(known))) < done:
                del known[oldest]
