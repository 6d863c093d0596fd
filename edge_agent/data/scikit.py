"""Handwritten digits that come with scikit-learn: the dataset that needs no file."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from edge_agent.data.tensors import Split, TensorDataset, check_split

_TRAIN_SHARE = 0.8
_MEAN, _DEVIATION = 4.884, 6.017  # of the pixels, which are 0 to 16


def digits(split: Split = "train") -> TensorDataset:
    """1797 digits as float32 [1, 8, 8] of about zero mean and unit deviation; labels 0 to 9.

    split: "train" has 1437 of them, "test" the other 360. The set has no split of its own; ours never changes.
    """
    check_split(split)
    rows = np.loadtxt(_file(), delimiter=",")  # 64 pixels and the label
    images_BHW, labels_B = rows[:, :-1].reshape(-1, 8, 8), rows[:, -1].astype(np.int64)
    order = np.random.RandomState(0).permutation(len(rows))  # RandomState: its stream is frozen by numpy
    border = int(_TRAIN_SHARE * len(order))
    chosen = order[:border] if split == "train" else order[border:]
    images = (torch.from_numpy(images_BHW[chosen]).float().unsqueeze(1) - _MEAN) / _DEVIATION
    return TensorDataset(images, torch.from_numpy(labels_B[chosen]))


def _file() -> Path:
    """Where scikit-learn keeps them. To import it takes 78 MB and longer than all else here, in every worker process."""
    scikit = find_spec("sklearn")
    assert scikit is not None  # it is a requirement
    assert scikit.submodule_search_locations is not None
    return Path(scikit.submodule_search_locations[0]) / "datasets" / "data" / "digits.csv.gz"
