"""A dataset that is held in memory, and the transforms of its images. Knows no file format."""

from collections.abc import Callable, Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from shared.errors import DataError

Split = Literal["train", "test"]
Transform = Callable[[Tensor], Tensor]


class TensorDataset:
    """Samples in two tensors, for data that fits in memory.

    inputs: samples along the first dimension. labels: likewise; integers for classes, numbers with a fraction for a
    regression, one or several a sample.
    transform: applied to a sample each time that it is read; may draw from torch's default generator.
    """

    def __init__(self, inputs: Tensor, labels: Tensor, transform: Transform | None = None) -> None:
        if len(inputs) != len(labels) or not len(inputs):
            raise DataError(f"{len(inputs)} inputs and {len(labels)} labels; a dataset needs as many of each, and some")
        self._inputs = inputs
        self._labels = labels
        self._transform = transform
        self.classes: list[str] | None = None
        """Names of the classes in the order of their numbers, where they have names."""
        self.vocabulary: list[str] | None = None
        """Words in the order of their numbers, of texts."""

    def __len__(self) -> int:
        return len(self._inputs)

    @property
    def in_memory(self) -> tuple[Tensor, Tensor] | None:
        """Inputs and labels of all samples, where reading one is no more than copying it."""
        return None if self._transform else (self._inputs, self._labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int | Tensor]:
        sample, label = self._inputs[index], self._labels[index]
        class_number = label.dim() == 0 and not label.is_floating_point()
        return (self._transform(sample) if self._transform else sample), int(label) if class_number else label


class Normalise:
    """Bytes of an image [C, H, W] to float32 of about zero mean and unit deviation.

    mean, deviation: of each channel over the training set, for bytes scaled to 0..1.
    """

    def __init__(self, mean: Sequence[float], deviation: Sequence[float]) -> None:
        self._mean_C11 = torch.tensor(mean).reshape(-1, 1, 1) * 255
        self._deviation_C11 = torch.tensor(deviation).reshape(-1, 1, 1) * 255

    def __call__(self, pixels_CHW: Tensor) -> Tensor:
        return (pixels_CHW.float() - self._mean_C11) / self._deviation_C11


class CropAndFlip:
    """The usual augmentation of small photographs: a random crop of the padded image, mirrored half the time."""

    def __init__(self, padding_pixels: int, then: Transform) -> None:
        self._padding = padding_pixels
        self._then = then

    def __call__(self, pixels_CHW: Tensor) -> Tensor:
        _, height, width = pixels_CHW.shape
        padded = F.pad(pixels_CHW, (self._padding,) * 4)
        top, left = torch.randint(2 * self._padding + 1, (2,)).tolist()
        cropped = padded[:, top : top + height, left : left + width]
        if torch.rand(()) < 0.5:
            cropped = cropped.flip(-1)
        return self._then(cropped)


def check_split(split: str) -> None:
    """Raise DataError unless `split` is one."""
    if split not in ("train", "test"):
        raise DataError(f"split is {split!r}; it must be 'train' or 'test'")


def check_limit(limit: int | None) -> None:
    """Raise DataError unless `limit` is absent or a number of samples."""
    if limit is not None and limit < 1:
        raise DataError(f"limit is {limit}; it must be 1 or more, or left out for all samples")
