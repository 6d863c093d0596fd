"""The images of the learning benchmark."""

from collections import Counter

import numpy as np
import pytest
import torch

from benchmarks.learning.images import Images, channel_norm, read_split, shuffled_indices
from edge_agent.data.jpeg_archive import read_jpeg_archive
from shared.errors import DataError


@pytest.mark.parametrize("limit", [None, 1, 99, 100, 101])
def test_images_are_the_agents_own_in_another_order(archive, limit):
    pixels, labels = read_split(archive, "train", limit)
    expected_pixels, expected_labels = read_jpeg_archive(archive, "train", 32, 32, None)
    order = shuffled_indices(100, "archive", "train")[:limit]
    assert torch.equal(pixels, expected_pixels[order])
    assert torch.equal(labels, expected_labels[order])
    assert sorted(shuffled_indices(100, "archive", "train").tolist()) == list(range(100))


def test_a_file_that_is_no_archive_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"missing\.npz cannot be read as an archive"):
        read_split(tmp_path / "missing.npz", "train")
    np.savez(tmp_path / "other.npz", train_bytes=np.zeros(3, np.uint8))
    with pytest.raises(DataError, match=r"other\.npz cannot be read"):
        read_split(tmp_path / "other.npz", "train")


def test_batches_are_normalised_and_every_sample_comes_once(archive):
    pixels, labels = read_split(archive, "train")
    norm = channel_norm(pixels)
    assert torch.allclose(norm[0], pixels.double().mean((0, 2, 3)).float())
    assert torch.allclose(norm[1], pixels.double().std((0, 2, 3), correction=0).float())
    images = Images(pixels, labels, norm, torch.device("cpu"))
    whole = torch.cat([inputs for inputs, _ in images.in_order(7)])
    assert torch.allclose(whole.mean((0, 2, 3)), torch.zeros(3), atol=1e-5)
    assert torch.allclose(whole.std((0, 2, 3)), torch.ones(3), atol=1e-3)

    shuffled = [[*images.shuffled(batch, seed, epoch)] for batch, seed, epoch in [(10, 0, 0), (10, 0, 0), (10, 0, 1)]]
    first, again, next_term = (torch.cat([inputs for inputs, _ in batches]) for batches in shuffled)
    assert torch.equal(first, again)
    assert not torch.equal(first, next_term)
    assert Counter(first.sum((1, 2, 3)).tolist()) == Counter(next_term.sum((1, 2, 3)).tolist())
    assert [len(inputs) for inputs, _ in images.shuffled(30, 0, 0)] == [30, 30, 30]
