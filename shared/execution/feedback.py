"""Codecs on the tensors between two workers, and the sender's error feedback (paper 000, Alg. 1)."""

from collections.abc import Iterable, Sequence

from torch import Tensor

from shared.codec import FeedbackMode, KeptError, codec_by_name, compensate, compression_error
from shared.model.features import Gradients, Slots
from shared.placement import Cargo, Crossing
from shared.registry import codec_spec

Errors = tuple[KeptError | None, ...]
"""Errors of the features whose error gradients come together."""


class Feedback:
    """The losses by codecs of the features that a worker has sent to another, until their error gradients are back."""

    def __init__(
        self, mode: FeedbackMode, coming: Iterable[Crossing], values: Sequence[Sequence[int]], batches: int = 1
    ) -> None:
        """coming: all that comes from the other worker in every step. values: see `ModelFacts.features`.

        batches: of an update, over which the loss is a mean.
        """
        self._mode = mode
        self._batches = batches
        self._values = values
        self._last: dict[int, int] = {}
        """By value that the other answers, the first block of the stage that does so last."""
        for one in coming:
            if one.cargo is Cargo.ERROR_GRADIENT:
                for slot in one.slots:
                    value = values[one.index][slot]
                    self._last[value] = min(one.index, self._last.get(value, one.index))
        self._errors: dict[tuple[int, int], KeptError] = {}
        """By step and value."""

    def wants(self, crossing: Crossing) -> bool:
        """Tell whether the error of a feature on this crossing is to be noted."""
        if self._mode is FeedbackMode.OFF or crossing.cargo is not Cargo.FEATURE:
            return False
        return any(self._values[crossing.index][slot] in self._last for slot in crossing.slots)

    def note(self, step: int, crossing: Crossing, received: Slots, sent: Slots, scale: float | None = None) -> None:
        """A feature has been sent, and is received like this: as the same tensor where nothing is lost.

        scale: of the loss of the step.
        """
        for value, arrived, tensor in zip(self._values[crossing.index], received, sent, strict=True):
            if value not in self._last or tensor is None or arrived is None or arrived is tensor:
                continue
            if tensor.is_floating_point():
                error = compression_error(arrived, tensor.cpu())
                # The second-order term is of one more gradient than the first, so that its error is without the scale.
                self._errors[step, value] = error if scale is None else error.over(scale)

    def errors(self, step: int, crossing: Crossing) -> Errors | None:
        """Return what `compensated` needs for the error gradients on a crossing; None where there is nothing to compute.

        They may have to come again, so `forget` ends it.
        """
        found = [self._errors.get((step, value)) for value in self._values[crossing.index]] if self._errors else []
        for error in found:
            if error is not None:
                return tuple(found)
        return None

    def compensated(self, gradients: Gradients, errors: Errors, samples: int) -> Gradients:
        """The error gradients at a feature as it was before its codec. samples: of the whole batch, over which its loss is."""
        return tuple(
            gradient
            if gradient is None or error is None
            else compensate(gradient, error.to(gradient.device), samples * self._batches, self._mode)
            for gradient, error in zip(gradients, errors, strict=True)
        )

    def forget(self, step: int, crossing: Crossing) -> None:
        """The error gradients on this crossing have come and are compensated."""
        for slot in crossing.slots if self._errors else ():
            value = self._values[crossing.index][slot]
            if self._last.get(value) == crossing.index:
                self._errors.pop((step, value), None)


def decoded(codec: str, tensors: Gradients, coded: Sequence[bool]) -> Gradients:
    """Return the tensors that the receiver decodes: on the CPU, or a tensor itself where nothing is lost.

    coded: see `Chain.coded_slots`.
    """
    pairs = zip(tensors, coded, strict=True)
    return tuple(None if tensor is None else _decoded(codec if may else "raw", tensor) for tensor, may in pairs)


def _decoded(codec_name: str, tensor: Tensor) -> Tensor:
    if not codec_spec(codec_name).lossy:
        return tensor
    codec = codec_by_name(codec_name)
    return codec.decode(codec.encode(tensor))
