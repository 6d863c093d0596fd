"""Arrivals of one crossing at one end of a link: the step that is whole next, and what has come of those after it."""

from shared.errors import ProtocolError
from shared.execution.step_in_flight import EncodedSlots
from shared.runtime.announcements import check_announcement
from shared.runtime.forms import Form
from shared.transport.stream.framing import TensorKey
from shared.wire.isthmus.v1.tensor_pb2 import Frame, TensorHeader


class Arriving:
    """The tensors of one crossing on their way here: announced slot by slot, step by step, and whole in the same order."""

    def __init__(self, form: Form, first_step: int) -> None:
        self.form = form
        self.crossing = form.crossing
        self.next_step = first_step
        """Step that is whole next."""
        self._announced: tuple[int, int, int] | None = None
        """Step, samples and count of slots that are announced, where some are missing."""
        self._agreed: dict[int, tuple[int, TensorHeader]] = {}
        """Samples and announcement that were agreed to last, by slot."""
        self._come: dict[int, EncodedSlots] = {}
        """Tensors that have come, by step, of steps that are not whole."""

    def check(self, frame: Frame, key: TensorKey) -> tuple[int, int, bool]:
        """Return the step and the slot of a tensor that is announced, and whether it is the first of its step.

        Raises ProtocolError, and the error of a loss that refuses labels; `agree` counts it.
        """
        form, samples = self.form, frame.batch_samples
        step, whole, count = self._announced or (form.step_of(key.step), samples, 0)
        if samples != whole:
            raise ProtocolError(f"{key} came for a batch of {samples} samples; its batch has {whole}")
        slot = form.slots[count]
        looks = samples, frame.tensor
        is_next = key == form.key(step, slot) and frame.placement_version == form.version
        if not is_next or self._agreed.get(slot) != looks:  # at once if it looks as the one before it
            check_announcement(frame, form.expected(step, slot, samples))
            self._agreed[slot] = looks
        return step, slot, count == 0

    def agree(self, step: int, samples: int) -> None:
        """Count the tensor as announced that `check` has judged."""
        count = 1 if self._announced is None else self._announced[2] + 1
        self._announced = (step, samples, count) if count < len(self.form.slots) else None

    def add(self, key: TensorKey, encoded: EncodedSlots) -> tuple[int, EncodedSlots | None]:
        """Add a tensor that has come whole. Returns its step, and all tensors of that where none is missing."""
        step = self.form.step_of(key.step)
        slots = self._come.setdefault(step, {})
        slots |= encoded
        return step, slots if len(slots) == len(self.form.slots) else None

    def end(self, step: int) -> None:
        """Count a step as whole."""
        del self._come[step]
        self.next_step = step + 1

    def begin_again(self) -> None:
        """Forget what a lost stream has brought of steps that are not whole: it comes again."""
        self._announced = None
        self._come.clear()
