"""Other inputs like an example: of another batch size, with other contents, of another length."""

import torch
from torch import Tensor

from shared.model.features import Features, FeatureSpecs

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


def length_of(inputs: Features | FeatureSpecs) -> int:
    """The length of inputs: the size behind the batch of the first of them that has one, or else 1."""
    return next((each.shape[1] for each in inputs if len(each.shape) > 1), 1)


def of_length(inputs: Features, length: int) -> Features:
    """The inputs with another length; longer ones repeat what they hold. All that have the length now get the other."""
    before = length_of(inputs)
    return tuple(
        tensor[:, torch.arange(length) % before] if tensor.dim() > 1 and tensor.shape[1] == before else tensor.clone()
        for tensor in inputs
    )


def other_lengths(example: Features) -> tuple[int, ...]:
    """Some lengths below the example's: one less, and half of it; fewer where there are not so many."""
    length = length_of(example)
    return tuple(dict.fromkeys(each for each in (length - 1, length // 2) if each > 0))


def shorter(example: Features) -> Features | None:
    """The inputs, one shorter; None where they have no length, or nothing to lose."""
    length = length_of(example)
    return of_length(example, length - 1) if length > 1 else None
