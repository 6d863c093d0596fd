"""Codecs on the tensors between two workers, and the sender's error feedback (paper 000, Alg. 1)."""

from collections.abc import Sequence

from torch import Tensor

from shared.codec import FeedbackMode, codec_by_name, compensate, compression_error
from shared.model.features import Gradients
from shared.placement import Cargo, Crossing
from shared.registry import codec_spec


class Feedback:
    """The losses by codecs of the features that a worker has sent, until their error gradients are back."""

    def __init__(
        self, mode: FeedbackMode, gradients_due: frozenset[Crossing], values: Sequence[Sequence[int]], batches: int = 1
    ) -> None:
        """gradients_due: the error gradients that come to this worker in every step. values: see `ModelFacts.features`.

        batches: of an update, over which the loss is a mean.
        """
        self._mode = mode
        self._batches = batches
        self._values = values
        self._last: dict[tuple[str, int], int] = {}
        """By worker and value that it answers, the first block of the stage that does so last."""
        for one in gradients_due:
            if one.cargo is Cargo.ERROR_GRADIENT:
                for value in self._values_of(one):
                    self._last[one.sender, value] = min(one.index, self._last.get((one.sender, value), one.index))
        self._errors: dict[tuple[int, str, int], Tensor] = {}
        """By step, by the worker that got a value, and by value."""

    def wants(self, crossing: Crossing) -> bool:
        """Tell whether the error of a feature on this crossing is to be noted."""
        if self._mode is FeedbackMode.OFF or crossing.cargo is not Cargo.FEATURE:
            return False
        return any((crossing.receiver, value) in self._last for value in self._values_of(crossing))

    def note(
        self, step: int, crossing: Crossing, errors: tuple[Tensor | None, ...], scale: float | None = None
    ) -> None:
        """A feature has been encoded; None where that took nothing from a tensor. scale: of the step's loss."""
        for value, error in zip(self._values[crossing.index], errors, strict=True):
            if error is not None and (crossing.receiver, value) in self._last:
                # The second-order term is of one more gradient than the first, so that its error is without the scale.
                self._errors[step, crossing.receiver, value] = error if scale is None else error.float() / scale

    def compensated(self, step: int, crossing: Crossing, gradients: Gradients, samples: int) -> Gradients:
        """The error gradients at a feature as it was before its codec. samples: of the whole batch, over which its loss is.

        They may have to come again, so `forget` ends it.
        """
        errors = [self._errors.get((step, crossing.sender, value)) for value in self._values[crossing.index]]
        return tuple(
            gradient
            if gradient is None or error is None
            else compensate(
                gradient.to(error.dtype), error.to(gradient.device), samples * self._batches, self._mode
            ).to(gradient.dtype)
            for gradient, error in zip(gradients, errors, strict=True)
        )

    def is_due(self, step: int, crossing: Crossing) -> bool:
        """Tell whether `compensated` has anything to compute for the error gradients on this crossing."""
        if not self._errors:
            return False
        return any((step, crossing.sender, value) in self._errors for value in self._values_of(crossing))

    def forget(self, step: int, crossing: Crossing) -> None:
        """The error gradients on this crossing have come and are compensated."""
        if not self._errors:
            return
        for value in self._values_of(crossing):
            if self._last.get((crossing.sender, value)) == crossing.index:
                self._errors.pop((step, crossing.sender, value), None)

    def _values_of(self, crossing: Crossing) -> list[int]:
        return [self._values[crossing.index][slot] for slot in crossing.slots]


def decoded(codec: str, tensors: Gradients, coded: Sequence[bool]) -> Gradients:
    """Return the tensors that the receiver decodes: on the CPU, or a tensor itself where nothing is lost.

    coded: see `Chain.coded_slots`.
    """
    pairs = zip(tensors, coded, strict=True)
    return tuple(None if tensor is None else _decoded(codec if may else "raw", tensor) for tensor, may in pairs)


def errors_of(received: Gradients, sent: Gradients) -> tuple[Tensor | None, ...]:
    """Return the error of the codec on each tensor; None where there is none, as on what is no float."""
    return tuple(
        None
        if tensor is None or arrived is None or arrived is tensor or not tensor.is_floating_point()
        else compression_error(arrived, tensor.cpu())
        for arrived, tensor in zip(received, sent, strict=True)
    )


def _decoded(codec_name: str, tensor: Tensor) -> Tensor:
    if not codec_spec(codec_name).lossy:
        return tensor
    codec = codec_by_name(codec_name)
    return codec.decode(codec.encode(tensor))
