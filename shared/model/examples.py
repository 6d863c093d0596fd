"""Other inputs like an example: of another batch size, with other contents, shorter."""

import torch
from torch import Tensor

from shared.model.features import Features

_OTHER_BATCH_SIZES = (2, 3)


def other_batch_sizes(example: Features) -> list[int]:
    """Small batch sizes that are not the example's."""
    return [size for size in _OTHER_BATCH_SIZES if size != example[0].shape[0]]


def with_batch(example: Features, size: int) -> Features:
    """Inputs with another batch size and other contents: each is put together of several of the example's.

    What stands at a place of a sample stood there in another one, so it is valid there.
    """
    return tuple(_with_batch(tensor, size) for tensor in example)


def _with_batch(example: Tensor, size: int) -> Tensor:
    samples = torch.cat([example] * (-(-size // example.shape[0]) + 1))
    mixed = samples.clone()
    if example.dim() > 1:
        mixed[:, ::2] = samples.roll(1, 0)[:, ::2]
    return mixed.flip(0)[:size].clone()


def other_batch(example: Features) -> Features:
    """The same, with a batch size of our choice."""
    return with_batch(example, other_batch_sizes(example)[0])


def shorter(example: Features) -> Features | None:
    """The inputs, one shorter in the dimension behind the batch; None where that is not there, or has nothing to lose.

    Of several inputs, the first that has such a dimension gives the length, and all with that length become shorter.
    """
    length = next((tensor.shape[1] for tensor in example if tensor.dim() > 1), 1)
    if length < 2:
        return None
    return tuple(
        tensor[:, :-1].clone() if tensor.dim() > 1 and tensor.shape[1] == length else tensor.clone()
        for tensor in example
    )
