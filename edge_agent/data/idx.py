"""Fashion-MNIST from its IDX files, packed with gzip or not."""

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from edge_agent.data.tensors import Normalise, Split, TensorDataset, check_split
from shared.errors import DataError

_PREFIX = {"train": "train", "test": "t10k"}
_UNSIGNED_BYTE = 0x08
_MEAN, _DEVIATION = 0.2860, 0.3530
_CLASSES = 10


def fashion_mnist(path: str, split: Split = "train") -> TensorDataset:
    """Clothes as float32 [1, 28, 28] of about zero mean and unit deviation; labels 0 to 9.

    path: the folder with `train-images-idx3-ubyte` and its three siblings, each as it is or with `.gz`. Other sets in
    the same files (MNIST) load too.
    Raises DataError for a file that is missing, truncated or not IDX.
    """
    check_split(split)
    folder, prefix = Path(path).expanduser(), _PREFIX[split]
    images = _read_idx(_find(folder, f"{prefix}-images-idx3-ubyte"), dimensions=3)
    labels = _read_idx(_find(folder, f"{prefix}-labels-idx1-ubyte"), dimensions=1)
    if len(images) != len(labels):
        raise DataError(f"{folder}: {len(images)} {split} images but {len(labels)} labels; it must be as many of each")
    if len(labels) and labels.max() >= _CLASSES:
        raise DataError(f"{folder}: a {split} label is {labels.max()}; labels must be 0 to {_CLASSES - 1}")
    return TensorDataset(images.unsqueeze(1), labels, Normalise([_MEAN], [_DEVIATION]))


def _find(folder: Path, name: str) -> Path:
    for candidate in (folder / name, folder / f"{name}.gz"):
        if candidate.is_file():
            return candidate
    raise DataError(f"{folder} has neither {name} nor {name}.gz; path must be the folder of Fashion-MNIST's IDX files")


def _read_idx(path: Path, dimensions: int) -> Tensor:
    """The unsigned bytes of an IDX file: two zeros, type, number of dimensions, sizes (big-endian), then the data."""
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    header_bytes = 4 + 4 * dimensions
    if content[:4] != bytes([0, 0, _UNSIGNED_BYTE, dimensions]) or len(content) < header_bytes:
        raise DataError(f"{path} is not an IDX file of unsigned bytes in {dimensions} dimensions")
    shape = struct.unpack(f">{dimensions}I", content[4:header_bytes])
    expected_bytes = header_bytes + math.prod(shape)
    if len(content) != expected_bytes:
        raise DataError(f"{path} holds {len(content)} bytes; its header, of shape {shape}, says {expected_bytes}")
    return torch.from_numpy(np.frombuffer(content, np.uint8, offset=header_bytes).reshape(shape).copy())
