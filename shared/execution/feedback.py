"""Codecs on the tensors between two workers, and the sender's error feedback (paper 000, Alg. 1)."""

from torch import Tensor

from shared.codec import FeedbackMode, codec_by_name, compensate, compression_error
from shared.model.features import Gradients
from shared.placement import Cargo, Crossing
from shared.registry import is_lossy


class Feedback:
    """The losses by codecs of the features that a worker has sent, until their error gradients are back."""

    def __init__(self, mode: FeedbackMode, gradients_due: frozenset[Crossing]) -> None:
        """gradients_due: the error gradients that come to this worker in every step."""
        self._mode = mode
        self._due = {(one.sender, one.index, one.rows) for one in gradients_due if one.cargo is Cargo.ERROR_GRADIENT}
        self._errors: dict[tuple[int, str, int], tuple[Tensor | None, ...]] = {}

    def wants(self, crossing: Crossing) -> bool:
        """Tell whether the error of a feature on this crossing is to be noted."""
        is_answered = (crossing.receiver, crossing.index, crossing.rows) in self._due
        return self._mode is not FeedbackMode.OFF and crossing.cargo is Cargo.FEATURE and is_answered

    def note(self, step: int, crossing: Crossing, errors: tuple[Tensor | None, ...]) -> None:
        """A feature has been encoded; None where that took nothing from a tensor."""
        self._errors[step, crossing.receiver, crossing.index] = errors

    def compensated(self, step: int, crossing: Crossing, gradients: Gradients, samples: int) -> Gradients:
        """The error gradients at a feature as it was before its codec. samples: of the whole batch, over which the loss is.

        They may have to come again, so `forget` ends it.
        """
        errors = self._errors.get((step, crossing.sender, crossing.index))
        if errors is None:
            return gradients
        return tuple(
            gradient
            if gradient is None or error is None
            else compensate(gradient, error.to(gradient.device), samples, self._mode)
            for gradient, error in zip(gradients, errors, strict=True)
        )

    def is_due(self, step: int, crossing: Crossing) -> bool:
        """Tell whether `compensated` has anything to compute for the error gradients on this crossing."""
        return (step, crossing.sender, crossing.index) in self._errors

    def forget(self, step: int, crossing: Crossing) -> None:
        """The error gradients on this crossing have come and are compensated."""
        self._errors.pop((step, crossing.sender, crossing.index), None)


def decoded(codec: str, tensors: Gradients) -> Gradients:
    """Return the tensors that the receiver decodes: on the CPU, or a tensor itself where nothing is lost: integers go raw."""
    return tuple(None if tensor is None else _decoded(codec, tensor) for tensor in tensors)


def errors_of(received: Gradients, sent: Gradients) -> tuple[Tensor | None, ...]:
    """Return the error of the codec on each tensor; None where there is none."""
    return tuple(
        None if tensor is None or arrived is None or arrived is tensor else compression_error(arrived, tensor.cpu())
        for arrived, tensor in zip(received, sent, strict=True)
    )


def _decoded(codec_name: str, tensor: Tensor) -> Tensor:
    if not is_lossy(codec_name) or not tensor.is_floating_point():
        return tensor
    codec = codec_by_name(codec_name)
    return codec.decode(codec.encode(tensor))
