"""Error feedback of gradients of weights: what a codec takes from the gradient of one step is added to that of the next.

So the sum of what has been sent stays within one step's loss of the sum of what was to be sent, however few bits a codec has.
"""

import math

import torch
from torch import Tensor

from shared.codec import codec_by_name
from shared.execution.shared_blocks import BlockPart
from shared.placement import BlockSlice


def overflow_told(tensor: Tensor) -> Tensor:
    """Return a tensor with NaN in place of infinities: a codec may make an infinity finite, and of NaN it tells."""
    return tensor if math.isfinite(tensor.sum().item()) else tensor.masked_fill(tensor.isinf(), math.nan)


class Residuals:
    """The losses of codecs on the gradients that a worker has sent, which go with the next ones.

    It is lost with the worker: then it begins with nothing, as before the first step. One thread at a time sends the gradients
    of a slice.
    """

    def __init__(self) -> None:
        self._left: dict[tuple[BlockSlice, str], Tensor] = {}
        """By slice and name of a gradient."""

    def added(self, one: BlockSlice, part: BlockPart) -> BlockPart:
        """Return a part of a slice with what is left of the gradients before; buffers stay as they are.

        `note` comes next: the gradients are in the memory of what is left, which costs less than new memory.
        """
        return {
            name: self._added(one, name, tensor) if name.startswith("gradient/") else tensor
            for name, tensor in part.items()
        }

    def _added(self, one: BlockSlice, name: str, gradient: Tensor) -> Tensor:
        left = self._left.get((one, name))
        return overflow_told(gradient.to("cpu", copy=True) if left is None else left.add_(gradient.cpu()))

    def sent(self, codec_name: str, one: BlockSlice, part: BlockPart) -> BlockPart:
        """Return a part as a receiver in the same process has it, and keep what the codec has taken from it."""
        codec, wanted = codec_by_name(codec_name), self.added(one, part)
        received = {
            name: codec.decode(codec.encode(tensor)) if name.startswith("gradient/") else tensor
            for name, tensor in wanted.items()
        }
        self.note(one, wanted, received)
        return received

    def note(self, one: BlockSlice, sent: BlockPart, received: BlockPart) -> None:
        """Keep what the codecs have taken from a part that `added` has returned."""
        for name, tensor in sent.items():
            if name.startswith("gradient/"):
                # A codec of the gradient's own type takes nothing, and the bytes to send are in the same memory.
                is_same = tensor.data_ptr() == received[name].data_ptr()
                self._left[one, name] = torch.zeros_like(tensor) if is_same else tensor.sub_(received[name])
