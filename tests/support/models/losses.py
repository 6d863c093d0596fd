"""Losses of a user's own."""

import torch
from torch import Tensor, nn
from torch.nn import functional

WEIGHTED = nn.CrossEntropyLoss(torch.ones(10))
"""Not a function, though it can be called like one."""


def summing(output: Tensor, labels: Tensor, reduction: str = "mean") -> Tensor:
    """The cross entropy, with the parameter that a mean over tokens needs."""
    return functional.cross_entropy(output, labels, reduction=reduction)


def of_the_first(output: Tensor, labels: Tensor) -> Tensor:
    """The class is the first number of each sample's labels."""
    return functional.cross_entropy(output, labels.flatten(1)[:, 0].long())


def rated(output: Tensor, labels: Tensor, rate: float, shares: Tensor, places: Tensor) -> Tensor:
    """The cross entropy by shares of the classes at these places, times a rate."""
    return rate * functional.cross_entropy(output[:, places], labels, shares[places])


def of_class_and_quarters(output: Tensor, labels: tuple[Tensor, Tensor]) -> Tensor:
    """The class is the first label; the logs of the last four outputs follow the second, four shares."""
    classes, shares = labels
    return functional.cross_entropy(output, classes) - (output[:, -4:].log_softmax(1) * shares).sum(1).mean()


def of_the_first_of_several(output: Tensor, labels: tuple[Tensor, ...]) -> Tensor:
    """The class is the first label."""
    return functional.cross_entropy(output, labels[0])


def of_two(outputs: tuple[Tensor, ...], labels: Tensor) -> Tensor:
    """The squares of the first of several outputs, and the sum of the second, weighted by the labels."""
    return outputs[0].square().mean() + (outputs[1].sum(1) * labels).mean()


def by_sample(output: Tensor, labels: Tensor) -> Tensor:
    """The cross entropy of each sample."""
    return functional.cross_entropy(output, labels, reduction="none")


def as_number(output: Tensor, labels: Tensor) -> float:
    """The cross entropy, out of its graph."""
    return float(functional.cross_entropy(output, labels))


def in_place(output: Tensor, labels: Tensor) -> Tensor:
    """The cross entropy of outputs that it bounds where they are."""
    return functional.cross_entropy(output.clamp_(-4, 4), labels)


def of_several_classes(output: Tensor, labels: Tensor, rate: float) -> Tensor:
    """The cross entropy, which needs two classes at least, times a rate."""
    if len(labels.unique()) < 2:
        raise ValueError("a batch of one class")
    return rate * functional.cross_entropy(output, labels)
