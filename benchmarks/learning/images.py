"""CIFAR-10 from an archive of JPEGs as tensors on the device, so that a batch costs one gather.

`edge_agent.data` reads the same file, but a machine with a GPU may lack the agent, and it hands
out samples one by one.
"""

import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from shared.errors import DataError
from shared.model.random_state import derive_seed


def read_split(path: Path, split: str, limit: int | None = None) -> tuple[Tensor, Tensor]:
    """Images of a split, uint8 [N, 3, H, W] with channels last in memory, and labels, int64 [N].

    path: an .npz with {split}_bytes (JPEGs end to end), {split}_off (where each begins, and the end) and {split}_y. limit: so
    many of them. They come in the same shuffled order every time, because archives may be sorted by class. Raises DataError for
    another file.
    """
    try:
        with np.load(path, allow_pickle=False) as archive:
            content, offsets, labels = (archive[f"{split}_{key}"] for key in ("bytes", "off", "y"))
        chosen = shuffled_indices(len(labels), "archive", split)[:limit].numpy()
        images = [_decode(content[offsets[index] : offsets[index + 1]].tobytes()) for index in chosen]
    except (OSError, ValueError, KeyError) as cause:
        raise DataError(f"{path} cannot be read as an archive of JPEGs: {cause}") from cause
    pixels_NHWC = torch.from_numpy(np.stack(images))
    return pixels_NHWC.permute(0, 3, 1, 2), torch.from_numpy(labels[chosen]).long()


def shuffled_indices(count: int, *key: int | str) -> Tensor:
    """0 to count - 1 in an order that `key` decides."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(derive_seed(*key)))


def _decode(jpeg: bytes) -> npt.NDArray[np.uint8]:
    with Image.open(io.BytesIO(jpeg), formats=["JPEG"]) as image:
        return np.asarray(image.convert("RGB"))


class Images:
    """Images and labels on a device; batches come as float32 [B, 3, H, W] of about zero mean and unit deviation."""

    def __init__(
        self, pixels_NCHW: Tensor, labels_N: Tensor, norm: tuple[Tensor, Tensor], device: torch.device
    ) -> None:
        """norm: mean and deviation of each channel's bytes, from `channel_norm`."""
        self._pixels_NCHW = pixels_NCHW.to(device)
        self._labels_N = labels_N.to(device)
        self._mean_C11, self._deviation_C11 = (of_C.to(device).view(-1, 1, 1) for of_C in norm)

    def __len__(self) -> int:
        return len(self._labels_N)

    def in_order(self, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """All of them, the last batch as short as it comes."""
        for indices in torch.split(torch.arange(len(self), device=self._labels_N.device), batch_size):
            yield self._batch(indices)

    def shuffled(self, batch_size: int, seed: int, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        """One epoch of whole batches; what does not fill the last one is left out."""
        order = shuffled_indices(len(self), seed, "order", epoch)[: len(self) // batch_size * batch_size]
        for indices in torch.split(order.to(self._labels_N.device), batch_size):
            yield self._batch(indices)

    def _batch(self, indices_B: Tensor) -> tuple[Tensor, Tensor]:
        return (self._pixels_NCHW[indices_B] - self._mean_C11) / self._deviation_C11, self._labels_N[indices_B]


def channel_norm(pixels_NCHW: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and deviation of each channel of uint8 images, float32 [C]; from a histogram, which takes little memory."""
    values_256 = torch.arange(256, dtype=torch.float64)
    means, deviations = [], []
    for pixels_NHW in pixels_NCHW.unbind(1):
        share_256 = torch.bincount(pixels_NHW.reshape(-1), minlength=256).double() / pixels_NHW.numel()
        means.append(share_256 @ values_256)
        deviations.append((share_256 @ (values_256 - means[-1]).square()).sqrt())
    return torch.stack(means).float(), torch.stack(deviations).float()
