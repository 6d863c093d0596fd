"""Makers of batches of small data sets in tests: functions for `data.collate`, samplers, and a batch transform."""

import random

import torch
from torch import Tensor
from torch.nn import functional

from tests.support.samples import FlatDigits


def padded(items: list[dict[str, Tensor]], length: int = 12) -> tuple[dict[str, Tensor], Tensor]:
    """Words padded to one length, with a mask of what counts."""
    rows = [functional.pad(item["input_ids"], (0, length - len(item["input_ids"]))) for item in items]
    tokens = torch.stack(rows)
    mask = torch.stack([torch.arange(length) < len(item["input_ids"]) for item in items])
    return {"input_ids": tokens, "attention_mask": mask}, torch.tensor([int(item["label"]) for item in items])


def noisy(items: list[tuple[Tensor, int]]) -> tuple[Tensor, Tensor]:
    """Samples with noise that is drawn when they become a batch."""
    values = torch.stack([torch.as_tensor(value) for value, _ in items])
    return values + torch.rand(()), torch.tensor([label for _, label in items])


def alone(items: list[tuple[Tensor, int]]) -> Tensor:
    """Inputs without labels."""
    return torch.stack([value for value, _ in items])


def too_few(items: list[tuple[Tensor, int]]) -> tuple[Tensor, Tensor]:
    """One item less than there are."""
    values, labels = noisy(items)
    return values[1:], labels[1:]


def unlabelled(items: list[tuple[Tensor, int]]) -> tuple[Tensor, str]:
    """Words in the place of labels."""
    return alone(items), "labels"


def longest(items: list[dict[str, Tensor]]) -> tuple[dict[str, Tensor], Tensor]:
    """Words padded to the longest of a batch."""
    return padded(items, max(len(item["input_ids"]) for item in items))


def continued(items: list[dict[str, Tensor]]) -> tuple[Tensor, Tensor]:
    """Words padded to the longest of a batch, and the word after each."""
    inputs, _ = longest(items)
    tokens = inputs["input_ids"]
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def misspelt(items: list[dict[str, Tensor]]) -> tuple[dict[str, Tensor], Tensor]:
    """Words by a name that no model has."""
    inputs, labels = padded(items)
    return {"input_ids": inputs["input_ids"], "mask": inputs["attention_mask"]}, labels


def rare_first(dataset: FlatDigits, seed: int, epoch: int) -> list[int]:
    """A sampler: every third sample, and every twelfth once more, in an order that it draws."""
    indices = [*range(epoch % 3, len(dataset), 3), *range(0, len(dataset), 12)] * 3
    random.Random(f"{seed} {epoch}").shuffle(indices)
    return indices[: 22 * 64 + 5]


def mostly_small(dataset: FlatDigits) -> list[float]:
    """Weights of samples: the smaller the number, the larger."""
    return [1 / (1 + dataset[index][1]) for index in range(len(dataset))]


def by_light(dataset: FlatDigits, seed: int, epoch: int, batch_size: int) -> list[list[int]]:
    """A batch sampler: samples of about the same light together, in batches that are not all whole."""
    by_light = sorted(range(len(dataset)), key=lambda index: float(dataset[index][0].sum()))
    batches = [by_light[begin : begin + batch_size - begin % 3] for begin in range(0, len(by_light), batch_size)]
    random.Random(f"{seed} {epoch}").shuffle(batches)
    return batches[:22]


def mixup(inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """A batch transform: each sample with a part of another one, and its labels as shares of ten classes."""
    share, others = random.betavariate(0.4, 0.4), torch.randperm(len(inputs))
    shares = functional.one_hot(labels, 10).float()
    return inputs.lerp(inputs[others], share), shares.lerp(shares[others], share)
