"""Pictures in a folder for each class: `{ image_folder = "photos/train", size = 32 }`."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from edge_agent.data.tensors import CropAndFlip, Normalise, Transform
from shared.errors import DataError

if TYPE_CHECKING:
    from PIL import Image

ENDINGS = {".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp"}


class ImageFolder:
    """Pictures that are read from their files each time."""

    def __init__(
        self,
        files: Sequence[tuple[Path, int]],
        classes: list[str],
        size: tuple[int, int] | None,
        mode: str,
        then: Transform,
        augment: bool,
    ) -> None:
        """size: height and width to which each is scaled; None leaves all as the first one is. mode: Pillow's."""
        self._files = files
        self.classes = classes
        """Names of the classes, in the order of their numbers."""
        self._mode = mode
        self._scales = size is not None
        self._size = size or self._size_of(files[0][0])
        self._then = CropAndFlip(max(min(self._size) // 8, 1), then) if augment else then

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        file, label = self._files[index]
        return self._then(self._pixels(file)), label

    def _pixels(self, file: Path) -> Tensor:
        """uint8 [C, H, W]."""
        from PIL import Image

        height, width = self._size
        try:
            with Image.open(file) as image:
                if not self._scales and image.size != (width, height):
                    raise DataError(
                        f"{file} is {image.width} x {image.height} pixels, and {self._files[0][0]} {width} x {height}; "
                        "give size"
                    )
                picture = self._in_bytes(file, image).convert(self._mode)
                if self._scales:
                    picture = picture.resize((width, height), Image.Resampling.BILINEAR)
                pixels = np.array(picture)
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as cause:
            raise DataError(f"{file} is no whole picture: {cause}") from cause
        return torch.from_numpy(pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1).copy())

    def _in_bytes(self, file: Path, image: "Image.Image") -> "Image.Image":
        """Scale grey of 16 bits to 8, which Pillow cuts off at 255. Raises DataError for numbers with no white of their own."""
        from PIL import Image

        if image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PPM"):
            return Image.fromarray(((np.asarray(image, np.int32) + 128) // 257).astype(np.uint8))
        if image.mode in ("I", "F"):
            raise DataError(f"{file} has numbers of 32 bits; 8 or 16 can be read")
        return image

    def _size_of(self, file: Path) -> tuple[int, int]:
        from PIL import Image

        try:
            with Image.open(file) as image:
                return image.height, image.width
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as cause:
            raise DataError(f"{file} is no whole picture: {cause}") from cause


class _ToUnit:
    """Bytes to float32 of 0 to 1, as torchvision's ToTensor."""

    def __call__(self, pixels: Tensor) -> Tensor:
        return pixels.float().div(255)


def image_folder(
    path: str,
    size: int | Sequence[int] | None = None,
    channels: int = 3,
    mean: Sequence[float] | None = None,
    deviation: Sequence[float] | None = None,
    augment: bool = False,
    classes: Sequence[str] | None = None,
) -> ImageFolder:
    """Pictures as float32 [C, H, W] of 0 to 1, each with the number of its class. Needs `isthmus[jpeg]`.

    path: a folder with a folder for each class, in which pictures may lie in folders. size: height and width to which each is
    scaled, or one number for both; left out, all must have one size. channels: 3, or 1 for grey. mean, deviation: of each
    channel, to be taken off and divided by. augment: random crops and mirror images. classes: names of the folders in the
    order of their numbers; left out, that of the alphabet.
    Raises DataError, naming the folder or file.
    """
    if find_spec("PIL") is None:
        raise DataError(f"{path}: reading pictures needs Pillow; install it with: pip install 'isthmus[jpeg]'")
    if channels not in (1, 3):
        raise DataError(f"channels is {channels}; it must be 3, or 1 for grey")
    if (mean is None) != (deviation is None) or {len(one) for one in (mean, deviation) if one is not None} - {channels}:
        raise DataError(f"mean and deviation must both have {channels} numbers, or both be left out")
    place = Path(path).expanduser()
    names = _classes_in(place) if classes is None else list(map(str, classes))
    files = [(file, number) for number, name in enumerate(names) for file in _pictures_in(place / name)]
    scaled = None if size is None else _height_and_width(size)
    then: Transform = _ToUnit() if mean is None or deviation is None else Normalise(mean, deviation)
    return ImageFolder(files, names, scaled, "RGB" if channels == 3 else "L", then, augment)


def _height_and_width(size: int | Sequence[int]) -> tuple[int, int]:
    both = (size, size) if isinstance(size, int) else tuple(size)
    if len(both) != 2 or not all(isinstance(one, int) and 1 <= one <= 16384 for one in both):
        raise DataError(f"size is {size}; it must be a number of pixels, or height and width")
    return both[0], both[1]


def _classes_in(folder: Path) -> list[str]:
    if not folder.is_dir():
        raise DataError(f"{folder} is no folder; it must have a folder of pictures for each class")
    names = sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    if not names:
        raise DataError(f"{folder} has no folder; it must have one for each class")
    return names


def _pictures_in(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise DataError(f"{folder} is no folder; it must be that of a class")
    found = sorted(file for file in folder.rglob("*") if file.suffix.lower() in ENDINGS and file.is_file())
    if not found:
        raise DataError(f"{folder} has no picture; each class needs one at least")
    return found
