"""Arrays of a file of numpy: `{ arrays = "x.npz" }`."""

import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from edge_agent.data.samples import Dataset
from edge_agent.data.tensors import TensorDataset
from shared.errors import DataError


class NamedArrays:
    """Samples of several arrays: inputs by name where there are several, and a tuple of labels."""

    def __init__(self, inputs: dict[str, Tensor], labels: list[Tensor]) -> None:
        self._inputs = inputs
        self._labels = labels

    def __len__(self) -> int:
        return len(self._labels[0])

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        inputs = {name: array[index] for name, array in self._inputs.items()}
        labels = tuple(array[index] for array in self._labels)
        return inputs if len(inputs) > 1 else next(iter(inputs.values())), labels if len(labels) > 1 else labels[0]


def arrays(path: str, inputs: str | Sequence[str] = "inputs", labels: str | Sequence[str] = "labels") -> Dataset:
    """Samples along the first dimension of the arrays; float64 becomes float32, other types stay.

    path: of an `.npz` as `np.savez` writes it, without objects. inputs: the name of an array; or several, which are inputs by
    these names. labels: likewise; several are label tensors in this order.
    Raises DataError for a file, or arrays, that cannot be so.
    """
    place = Path(path).expanduser()
    of_inputs, of_labels = ([one] if isinstance(one, str) else list(one) for one in (inputs, labels))
    found = _read(place, [*of_inputs, *of_labels])
    if isinstance(inputs, str) and isinstance(labels, str):
        return TensorDataset(found[inputs], found[labels])
    return NamedArrays({name: found[name] for name in of_inputs}, [found[name] for name in of_labels])


def _read(path: Path, names: Sequence[str]) -> dict[str, Tensor]:
    try:
        archive = np.load(path, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise DataError(f"{path} is one array; it must be an .npz, as np.savez writes it")
        with archive:
            if absent := [name for name in names if name not in archive.files]:
                raise DataError(f"{path} has no array {absent[0]!r}; it has {', '.join(archive.files[:20])}")
            found = {name: archive[name] for name in names}
    except (OSError, ValueError, EOFError, TypeError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"{path} cannot be read as an .npz: {error}") from error
    counts = {name: array.shape[0] if array.ndim else 0 for name, array in found.items()}
    if len(set(counts.values())) > 1 or not all(counts.values()):
        told = ", ".join(f"{name!r} has {count}" for name, count in counts.items())
        raise DataError(f"{path}: {told} samples; all arrays need as many, and some")
    tensors = {}
    for name, array in found.items():
        dtype = np.dtype(np.float32) if array.dtype.kind == "f" and array.dtype.itemsize == 8 else array.dtype
        try:
            tensors[name] = torch.from_numpy(array.astype(dtype.newbyteorder("="), copy=False))
        except TypeError as error:
            raise DataError(f"{path}: torch has no type for array {name!r}, of {array.dtype}") from error
    return tensors
