"""An invented archive of JPEGs, in the form of the real ones."""

import io
from pathlib import Path

import numpy as np
from PIL import Image


def write_image_archive(path: Path, side: int, classes: int, of_each: int) -> Path:
    """Write so many images of each class and split, sorted by class; a class is a brightness under noise."""
    generator = np.random.default_rng(0)
    arrays = {}
    for split in ("train", "test"):
        labels = np.repeat(np.arange(classes, dtype=np.uint8), of_each)
        encoded = []
        for label in labels:
            buffer = io.BytesIO()
            pixels = generator.integers(0, 60, (side, side, 3), dtype=np.uint8) + label * (190 // classes)
            Image.fromarray(pixels.astype(np.uint8)).save(buffer, "JPEG")
            encoded.append(np.frombuffer(buffer.getvalue(), np.uint8))
        arrays[f"{split}_bytes"] = np.concatenate(encoded)
        arrays[f"{split}_off"] = np.cumsum([0, *map(len, encoded)])
        arrays[f"{split}_y"] = labels
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **arrays)
    return path
