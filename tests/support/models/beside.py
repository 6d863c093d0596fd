"""Models and losses of users that hand something on beside their tensors, in every way that we could think of."""

import random
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

LEFT: list[Tensor] = []
SHARED = SimpleNamespace(value=None, calls=0, block=None)
WIDTH = 16


class Middle(nn.Module):
    """A layer that does something beside its output."""

    def __init__(self, leave: Callable[["Middle", Tensor], Tensor | None]) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.leave = leave

    def forward(self, value: Tensor) -> Tensor:
        made = self.layer(value).relu()
        changed = self.leave(self, made) if self.training else None
        return made if changed is None else changed


class Reader(nn.Module):
    """The layer behind it, which may read what was left."""

    def __init__(self, read: Callable[["Reader", Tensor], Tensor] | None) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.read = read

    def forward(self, value: Tensor) -> Tensor:
        return self.layer(value if self.read is None or not self.training else self.read(self, value))


def model(leave: str, read: str | None = None) -> nn.Module:
    """A chain of six blocks: the third leaves something, the fifth may read it."""
    SHARED.block = middle = Middle(globals()[leave])
    reader = Reader(None if read is None else globals()[read])
    layers = [nn.Linear(64, WIDTH), nn.ReLU(), middle, nn.ReLU(), reader, nn.Linear(WIDTH, 10)]
    return nn.Sequential(*layers)


def nothing(_block: Middle, _made: Tensor) -> None:
    """Leave nothing."""


def on_a_list(_block: Middle, made: Tensor) -> None:
    LEFT.append(made.square().mean())


def a_number_on_a_list(_block: Middle, made: Tensor) -> None:
    LEFT.append(torch.tensor(float(made.detach().square().mean())))


def weights_on_a_list(block: Middle, _made: Tensor) -> None:
    LEFT.append(block.layer.weight.square().mean())


def in_an_attribute(block: Middle, made: Tensor) -> None:
    block.kept = made.square().mean()


def in_a_global(_block: Middle, made: Tensor) -> None:
    SHARED.value = made.abs().mean().detach()


def size_of_weights(block: Middle, _made: Tensor) -> None:
    SHARED.value = block.layer.weight.norm().detach()


def on_the_tensor(_block: Middle, made: Tensor) -> None:
    made.kept = made.square().mean()


def by_python(_block: Middle, made: Tensor) -> Tensor:
    return made * random.random()


def by_numpy(_block: Middle, made: Tensor) -> Tensor:
    return made * np.random.rand()


def by_calls(_block: Middle, made: Tensor) -> Tensor:
    SHARED.calls += 1
    return made / SHARED.calls


def by_last_batch(block: Middle, made: Tensor) -> Tensor:
    before, block.last = getattr(block, "last", 0.0), made.detach().mean()
    return made + before


def by_own_count(block: Middle, made: Tensor) -> Tensor:
    block.count = getattr(block, "count", 0) + 1
    return made / (1 + block.count)


def noting(block: Middle, made: Tensor) -> None:
    """Keep something that nobody computes with, as a log does."""
    LEFT.append(made.detach())
    block.mean = float(made.detach().mean())


def from_a_list(_block: Reader, value: Tensor) -> Tensor:
    return value + LEFT.pop()


def from_a_global(_block: Reader, value: Tensor) -> Tensor:
    return value * SHARED.value


def by_others_weights(_block: Reader, value: Tensor) -> Tensor:
    return functional.linear(value, SHARED.block.layer.weight.detach())


def by_others_learning_weights(_block: Reader, value: Tensor) -> Tensor:
    return functional.linear(value, SHARED.block.layer.weight)


def adding_the_list(output: Tensor, labels: Tensor) -> Tensor:
    loss = functional.cross_entropy(output, labels) + 0.1 * sum(LEFT)
    LEFT.clear()
    return loss


def adding_the_attribute(output: Tensor, labels: Tensor) -> Tensor:
    kept = getattr(SHARED.block, "kept", 0.0)
    SHARED.block.kept = 0.0
    return functional.cross_entropy(output, labels) + 0.1 * kept


def adding_weights(output: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(output, labels) + 0.1 * SHARED.block.layer.weight.square().sum()


def by_the_last_loss(output: Tensor, labels: Tensor) -> Tensor:
    loss = functional.cross_entropy(output, labels)
    before, SHARED.value = SHARED.value, loss.detach()
    return loss if before is None else loss + 0.5 * before * output.square().mean()


def drawn(output: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(output + 0.1 * torch.randn_like(output), labels)


def smoothed(output: Tensor, labels: Tensor) -> Tensor:
    """A loss that has all that it needs."""
    return functional.cross_entropy(output, labels, label_smoothing=0.1)


def summed(output: Tensor, labels: Tensor) -> Tensor:
    """A loss that is no mean."""
    return functional.cross_entropy(output, labels, reduction="sum")


def of_eight(output: Tensor, labels: Tensor) -> Tensor:
    """A loss that takes a whole batch only."""
    return functional.cross_entropy(output.view(8, 10), labels)


def writing_down(output: Tensor, labels: Tensor) -> Tensor:
    """A loss that notes what it has seen."""
    loss = functional.cross_entropy(output, labels)
    LEFT.append(loss.detach())
    return loss


class ArcFace(nn.Module):
    """A loss that has the weights of the classes."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(10, 10))

    def forward(self, output: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(functional.linear(functional.normalize(output), self.weight), labels)


arc_face = ArcFace()


class Spectrum(nn.Module):
    """A Fourier transform, without parameters."""

    def forward(self, value: Tensor) -> Tensor:
        return torch.fft.fft(value)


class Power(nn.Module):
    """The size of complex numbers, without parameters."""

    def forward(self, value: Tensor) -> Tensor:
        return value.abs()


def spectral() -> nn.Module:
    """A chain in which complex numbers pass."""
    return nn.Sequential(nn.Linear(64, WIDTH), nn.Tanh(), Spectrum(), Power(), nn.Linear(WIDTH, 10))


class Teacher(nn.Module):
    """A layer with a teacher that follows its weights at every so many forwards."""

    def __init__(self, every: int, as_buffers: bool) -> None:
        super().__init__()
        self.student = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("forwards", torch.tensor(0))
        self._every, first = every, self.student.weight.detach().clone()
        if as_buffers:
            self.register_buffer("target", first)
        else:
            self.target = nn.Parameter(first, requires_grad=False)

    def forward(self, value: Tensor) -> Tensor:
        if self.training:
            self.forwards += 1
            if int(self.forwards) % self._every == 0:
                self.target.data.mul_(0.9).add_(self.student.weight.data, alpha=0.1)
        return self.student(value) + functional.linear(value, self.target)


def taught(every: int, as_buffers: bool = False) -> nn.Module:
    """A chain with a teacher in its third block."""
    return nn.Sequential(nn.Linear(64, WIDTH), nn.ReLU(), Teacher(every, as_buffers), nn.ReLU(), nn.Linear(WIDTH, 10))


class Drifting(nn.Module):
    """Weights that do not learn, and that change at every eighth forward: nothing else is in the block."""

    def __init__(self) -> None:
        super().__init__()
        self.target = nn.Parameter(torch.eye(WIDTH), requires_grad=False)
        self._forwards = 0

    def forward(self, value: Tensor) -> Tensor:
        if self.training:
            self._forwards += 1
            if self._forwards % 8 == 0:
                self.target.data = self.target.data * 0.9
        return functional.linear(value, self.target)


def drifting() -> nn.Module:
    """A chain whose third block has nothing that learns."""
    return nn.Sequential(nn.Linear(64, WIDTH), nn.ReLU(), Drifting(), nn.ReLU(), nn.Linear(WIDTH, 10))
