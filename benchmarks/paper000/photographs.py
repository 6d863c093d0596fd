"""Twenty classes of Tiny ImageNet, 10,000 photographs for training and 1,000 to test, from an archive of JPEGs."""

from pathlib import Path

from edge_agent.data.jpeg_archive import read_jpeg_archive
from edge_agent.data.tensors import CropAndFlip, Normalise, Split, TensorDataset, check_split
from shared.errors import DataError

_SIDE, _CLASSES = 64, 20
_NORMALISE = Normalise(mean=(0.485, 0.456, 0.406), deviation=(0.229, 0.224, 0.225))
"""Scale of ImageNet, as networks expect it that learned from it."""


def tiny_imagenet(path: str, split: Split = "train", augment: bool = False) -> TensorDataset:
    """Return photographs as float32 [3, 64, 64] of about zero mean and unit deviation; labels 0 to 19.

    path: an `.npz` as `jpeg_archive` describes it. augment: random crops and mirror images.
    Raises DataError for a file that is missing, torn or of another form.
    """
    check_split(split)
    place = Path(path).expanduser()
    images, labels = read_jpeg_archive(place, split, _SIDE, _SIDE, None)
    if labels.max() >= _CLASSES:
        raise DataError(f"{place}: a {split} label is {labels.max()}; labels must be 0 to {_CLASSES - 1}")
    return TensorDataset(images, labels, CropAndFlip(8, then=_NORMALISE) if augment else _NORMALISE)
