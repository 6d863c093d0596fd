"""Other inputs like an example: of another batch size, with other contents, shorter."""

import torch
from torch import Tensor

_OTHER_BATCH_SIZES = (2, 3)


def other_batch_sizes(example: Tensor) -> list[int]:
    """Small batch sizes that are not the example's."""
    return [size for size in _OTHER_BATCH_SIZES if size != example.shape[0]]


def with_batch(example: Tensor, size: int) -> Tensor:
    """Inputs with another batch size and other contents: each is put together of several of the example's.

    What stands at a place of a sample stood there in another one, so it is valid there.
    """
    samples = torch.cat([example] * (-(-size // example.shape[0]) + 1))
    mixed = samples.clone()
    if example.dim() > 1:
        mixed[:, ::2] = samples.roll(1, 0)[:, ::2]
    return mixed.flip(0)[:size].clone()


def other_batch(example: Tensor) -> Tensor:
    """The same, with a batch size of our choice."""
    return with_batch(example, other_batch_sizes(example)[0])


def shorter(example: Tensor) -> Tensor | None:
    """The inputs, one shorter in the dimension behind the batch; None where that is not there, or has nothing to lose."""
    if example.dim() < 2 or example.shape[1] < 2:
        return None
    return example[:, :-1].clone()
