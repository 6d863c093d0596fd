"""Images as JPEGs end to end in one `.npz`: a compact form of an image dataset that numpy opens without pickle.

Keys: `train_` and `test_` before `bytes` (uint8), `off` (int64, one more than images: where each begins and the last
ends) and `y` (uint8 labels). Decoding them needs Pillow, which a device that reads no JPEGs need not have.
"""

import io
import zipfile
import zlib
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from shared.errors import DataError

_FORM = "an .npz with {split}_bytes (uint8), {split}_off (int64) and {split}_y (uint8)"


def read_jpeg_archive(path: Path, split: str, height: int, width: int, limit: int | None) -> tuple[Tensor, Tensor]:
    """Decoded images, uint8 [N, 3, height, width], and their labels, uint8 [N]; the first `limit` of them.

    Raises DataError for a file that is no such archive, for an image that is no image or of another size, and where Pillow is
    not installed.
    """
    if find_spec("PIL") is None:
        raise DataError(f"{path}: reading JPEGs needs Pillow; install it with: pip install 'isthmus[jpeg]'")
    content, offsets, labels = _read_arrays(path, split)
    if len(offsets) != len(labels) + 1 or not len(labels):
        raise DataError(
            f"{path}: {len(labels)} labels in {split}_y and {len(offsets)} offsets in {split}_off; "
            "there must be one label or more, and one more offset than labels"
        )
    if offsets[0] < 0 or offsets[-1] > len(content) or (np.diff(offsets) <= 0).any():
        raise DataError(f"{path}: {split}_off must increase within 0 to {len(content)}, the length of {split}_bytes")
    count = min(len(labels), limit or len(labels))
    images = np.empty((count, 3, height, width), np.uint8)
    for index in range(count):
        jpeg = content[offsets[index] : offsets[index + 1]].tobytes()
        images[index] = _decode(jpeg, height, width, f"{path}: {split} image {index}")
    return torch.from_numpy(images), torch.from_numpy(labels[:count].copy())


def _read_arrays(path: Path, split: str) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    form = _FORM.format(split=split)
    try:
        with np.load(path, allow_pickle=False) as archive:
            content, offsets, labels = (archive[f"{split}_{key}"] for key in ("bytes", "off", "y"))
    except KeyError as error:
        raise DataError(f"{path}: {error.args[0]}; it must be {form}") from error
    except (OSError, ValueError, EOFError, TypeError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"{path} cannot be read ({error}); it must be {form}") from error
    arrays = ((content, np.uint8), (offsets, np.int64), (labels, np.uint8))
    if any(array.dtype != dtype or array.ndim != 1 for array, dtype in arrays):
        raise DataError(f"{path} has arrays of another type or shape; it must be {form}, each of one dimension")
    return content, offsets, labels


def _decode(jpeg: bytes, height: int, width: int, where: str) -> npt.NDArray[np.uint8]:
    from PIL import Image

    try:
        with Image.open(io.BytesIO(jpeg), formats=["JPEG"]) as image:
            if image.size != (width, height):  # before decoding: a header may promise any size
                raise DataError(f"{where} is {image.width} x {image.height} pixels; it must be {width} x {height}")
            return np.asarray(image.convert("RGB")).transpose(2, 0, 1)
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise DataError(f"{where} is not a whole JPEG: {error}") from error
