"""Labels that reveal samples: they are treated as samples; classes and other targets are not."""

import pytest
import torch

from edge_agent.data import Batch
from edge_agent.experiment.privacy import labels_are_inputs

PICTURES = torch.rand(32, 1, 8, 8, generator=torch.Generator().manual_seed(1))
TOKENS = torch.randint(0, 50, (32, 13), generator=torch.Generator().manual_seed(1))
CLASSES = torch.randint(0, 10, (32,), generator=torch.Generator().manual_seed(1))
MIXING = torch.randn(64, 64, generator=torch.Generator().manual_seed(1))


def judged(inputs, labels):
    return labels_are_inputs(Batch(0, inputs, labels))


@pytest.mark.parametrize(
    ("inputs", "labels"),
    [
        (PICTURES, PICTURES),
        (PICTURES[:4], PICTURES[:4]),
        (PICTURES, 1 - PICTURES / 2),
        (PICTURES, PICTURES.flatten(1).flip(1)),
        (PICTURES, PICTURES[..., :4]),
        (TOKENS[:, :-1], TOKENS[:, 1:]),
    ],
    ids=["an autoencoder", "a small batch of it", "scaled", "turned around", "a half", "the next words of a text"],
)
def test_labels_that_give_samples_are_found(inputs, labels):
    assert judged(inputs, labels)


@pytest.mark.parametrize(
    ("inputs", "labels"),
    [
        (PICTURES, CLASSES),
        (TOKENS, CLASSES),
        (PICTURES, PICTURES.flatten(1).sum(1)),
        (PICTURES, PICTURES.flatten(1) @ MIXING),
        (PICTURES, PICTURES[..., 0, 0]),
        (PICTURES, torch.zeros(32, 64)),
        (TOKENS[:4], CLASSES[:4]),
    ],
    ids=["classes", "classes of texts", "a sum", "mixtures", "one pixel", "always the same", "a small batch"],
)
def test_other_labels_are_not(inputs, labels):
    assert not judged(inputs, labels)
