"""Outputs of a trained model for all samples of a dataset, as a file. The numbers are the module's own, bit for bit."""

from contextlib import closing
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from edge_agent.afterwards.trained import outputs_of, samples_of
from edge_agent.experiment.workload import Workload
from shared.errors import ConfigError, DataError
from shared.files.whole_file import write_whole

KINDS = (".npz", ".csv")


def check_kind(file: Path) -> None:
    """Refuse a name that says no kind of file. Raises ConfigError."""
    if file.suffix not in KINDS:
        raise ConfigError(
            f"{file} is to be written, and its name says no kind of file; end it with {' or '.join(KINDS)}"
        )


def write_predictions(workload: Workload, file: Path) -> int:
    """Write the outputs for all samples, in their order; returns how many samples there are.

    .npz has an array `outputs`, or `outputs_0` and so on where the model has several; .csv has a line a sample, with each
    number in as many digits as tell it from all others. Raises ConfigError, DataError, ModelError or StorageError.
    """
    check_kind(file)
    with closing(samples_of(workload).iterate()) as batches:
        outputs = [outputs_of(workload.chain, workload.recipe, batch.inputs) for batch in batches]
    slots = [_joined(parts) for parts in zip(*outputs, strict=True)]
    names = ["outputs"] if len(slots) == 1 else [f"outputs_{slot}" for slot in range(len(slots))]
    arrays = dict(zip(names, slots, strict=True))

    def write(place: Path) -> None:
        if file.suffix == ".csv":
            _write_csv(place, arrays)
            return
        with place.open("wb") as opened:
            np.savez(opened, **arrays)  # type: ignore[arg-type]

    write_whole(file, write)
    return len(slots[0])


def _joined(parts: tuple[Tensor, ...]) -> "np.ndarray[tuple[int, ...], np.dtype[np.generic]]":
    shapes = {part.shape[1:] for part in parts}
    if len(shapes) > 1:
        raise DataError(
            f"the outputs of different batches have different shapes, {' and '.join(str(tuple(one)) for one in shapes)} a "
            "sample, which no table has; let data.collate pad all to one length"
        )
    whole = torch.cat(parts)
    return (whole.float() if whole.dtype == torch.bfloat16 else whole).numpy()  # numpy has no bfloat16


def _write_csv(place: Path, arrays: "dict[str, np.ndarray[tuple[int, ...], np.dtype[np.generic]]]") -> None:
    flat = {name: array.reshape(len(array), -1) for name, array in arrays.items()}
    with place.open("w", encoding="utf-8") as opened:
        columns = (f"{name}_{column}" for name, array in flat.items() for column in range(array.shape[1]))
        opened.write(f"sample,{','.join(columns)}\n")
        for sample in range(len(next(iter(flat.values())))):
            numbers = (str(number) for array in flat.values() for number in array[sample])
            opened.write(f"{sample},{','.join(numbers)}\n")
