"""Handwritten digits that come with the package: the dataset that needs no file. uci_digits/README.md says whose they are."""

from importlib.resources import files

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
    with (files("edge_agent.data") / "uci_digits" / "digits.npz").open("rb") as file, np.load(file) as archive:
        pixels_BHW, labels_B = archive["pixels"], archive["labels"].astype(np.int64)
    order = np.random.RandomState(0).permutation(len(labels_B))  # RandomState: its stream is frozen by numpy
    border = int(_TRAIN_SHARE * len(order))
    chosen = order[:border] if split == "train" else order[border:]
    images = (torch.from_numpy(pixels_BHW[chosen]).float().unsqueeze(1) - _MEAN) / _DEVIATION
    return TensorDataset(images, torch.from_numpy(labels_B[chosen]))
