"""An invented archive of images."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image


@pytest.fixture(scope="module")
def archive(tmp_path_factory) -> Path:
    """100 images of each split, sorted by class, in the form of the real archive."""
    generator = np.random.default_rng(0)
    arrays = {}
    for split in ("train", "test"):
        labels = np.repeat(np.arange(10, dtype=np.uint8), 10)
        encoded = []
        for label in labels:
            buffer = io.BytesIO()
            pixels = generator.integers(0, 60, (32, 32, 3), dtype=np.uint8) + 19 * label
            Image.fromarray(pixels).save(buffer, "JPEG")
            encoded.append(np.frombuffer(buffer.getvalue(), np.uint8))
        arrays[f"{split}_bytes"] = np.concatenate(encoded)
        arrays[f"{split}_off"] = np.cumsum([0, *map(len, encoded)])
        arrays[f"{split}_y"] = labels
    path = tmp_path_factory.mktemp("images") / "images.npz"
    np.savez(path, **arrays)
    return path
