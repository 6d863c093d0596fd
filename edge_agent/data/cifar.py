"""CIFAR-10, from its own binary form or from an archive of JPEGs."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from edge_agent.data.jpeg_archive import read_jpeg_archive
from edge_agent.data.tensors import CropAndFlip, Normalise, Split, TensorDataset, check_limit, check_split
from shared.errors import DataError

_SIDE = 32
_IMAGE_BYTES = 3 * _SIDE * _SIDE
_RECORD_BYTES = 1 + _IMAGE_BYTES
_CLASSES = 10
_FILES = {"train": [f"data_batch_{number}.bin" for number in range(1, 6)], "test": ["test_batch.bin"]}
_NORMALISE = Normalise(mean=(0.4914, 0.4822, 0.4465), deviation=(0.2470, 0.2435, 0.2616))


def cifar10(path: str, split: Split = "train", augment: bool = False, limit: int | None = None) -> TensorDataset:
    """Photographs as float32 [3, 32, 32] of about zero mean and unit deviation; labels 0 to 9.

    path: the folder `cifar-10-batches-bin`, or an `.npz` of JPEGs (see `jpeg_archive`). Decoded images lie in memory
        as bytes: 154 MB for the training set.
    augment: random crops and mirror images. limit: only the first so many.
    Raises DataError for a file that is missing, truncated or of another form.
    """
    check_split(split)
    check_limit(limit)
    place = Path(path).expanduser()
    if place.is_dir():
        images, labels = _read_binary(place, split, limit)
    elif place.is_file():
        images, labels = read_jpeg_archive(place, split, _SIDE, _SIDE, limit)
    else:
        raise DataError(f"{place} does not exist; path must be the folder cifar-10-batches-bin or an .npz of JPEGs")
    if labels.max() >= _CLASSES:
        raise DataError(f"{place}: a {split} label is {labels.max()}; labels must be 0 to {_CLASSES - 1}")
    return TensorDataset(images, labels, CropAndFlip(4, then=_NORMALISE) if augment else _NORMALISE)


def _read_binary(folder: Path, split: Split, limit: int | None) -> tuple[Tensor, Tensor]:
    """All records of the split's files; a record is the label's byte and then the image, channel by channel."""
    parts = []
    for name in _FILES[split]:
        file = folder / name
        if not file.is_file():
            raise DataError(f"{file} does not exist; the {split} set is in {', '.join(_FILES[split])}")
        content = np.fromfile(file, np.uint8)
        if not len(content) or len(content) % _RECORD_BYTES:
            raise DataError(f"{file} holds {len(content)} bytes; it must be whole records of {_RECORD_BYTES} bytes")
        parts.append(content.reshape(-1, _RECORD_BYTES))
    records = torch.from_numpy(np.concatenate(parts)[:limit])
    return records[:, 1:].reshape(-1, 3, _SIDE, _SIDE), records[:, 0]
