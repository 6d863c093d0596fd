"""An invented archive of images."""

from pathlib import Path

import pytest

from tests.support.image_archive import write_image_archive


@pytest.fixture(scope="module")
def archive(tmp_path_factory) -> Path:
    """100 images of each split, sorted by class, in the form of the real archive."""
    return write_image_archive(tmp_path_factory.mktemp("images") / "images.npz", side=32, classes=10, of_each=10)
