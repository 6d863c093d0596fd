"""Pairs for a generator: a class and a transformation in, an image out. They stand for the rendered chairs of paper 000.

The objects are digits, each turned by several angles; the network has to draw an object at an angle at which it
was never shown.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from edge_agent.data import digits, evaluation_batches
from edge_agent.data.tensors import Split, check_split
from shared.errors import DataError

_TRAIN_SHARE = 0.75


class Views:
    """Each of some objects at each of some angles, in an order that never changes, of which the split takes a part."""

    def __init__(self, images_NHW: Tensor, angles: int, size: int, channels: int, split: Split) -> None:
        self._images, self._angles, self._size, self._channels = images_NHW, angles, size, channels
        order = torch.randperm(len(images_NHW) * angles, generator=torch.Generator().manual_seed(0))
        border = round(_TRAIN_SHARE * len(order))
        self._pairs = order[:border] if split == "train" else order[border:]

    def __len__(self) -> int:
        return len(self._pairs)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        number, angle = divmod(int(self._pairs[index]), self._angles)
        asked = torch.zeros(len(self._images) + self._angles)
        asked[number] = asked[len(self._images) + angle] = 1.0
        turn = 2 * math.pi * angle / self._angles
        rotation = torch.tensor([[math.cos(turn), -math.sin(turn), 0.0], [math.sin(turn), math.cos(turn), 0.0]])
        grid = F.affine_grid(rotation[None], [1, 1, self._size, self._size], align_corners=False)
        drawn = F.grid_sample(self._images[number][None, None], grid, align_corners=False)[0]
        return asked, drawn.repeat(self._channels, 1, 1)


def views(
    split: Split = "train",
    objects: int = 809,
    angles: int = 16,
    size: int = 128,
    channels: int = 3,
) -> Views:
    """Return pairs of float32 [objects + angles], two ones, and an image, float32 [channels, size, size] of 0 to 1.

    The images are the digits that come with the package. The numbers of objects and angles make the 825 inputs of
    `shared.model.zoo:chair`. Raises DataError for more objects than there are.
    """
    check_split(split)
    source = digits()
    if not 1 <= objects <= len(source):
        raise DataError(f"objects is {objects}; it must be 1 to {len(source)}, as many as there are images")
    inputs = next(evaluation_batches(source, objects)).inputs
    assert isinstance(inputs, Tensor)
    images = inputs[:, 0]
    low, high = images.aminmax()
    return Views((images - low) / (high - low), angles, size, channels, split)
