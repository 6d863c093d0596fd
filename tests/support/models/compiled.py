"""Models that torch.compile has had: the whole, by either way, and a layer in the middle; and in DataParallel."""

import torch
from torch import Tensor, nn

WIDTH = 4


class Straight(nn.Module):
    """Three layers in a row, without blocks()."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        """Return what the layers make of x, one after the other."""
        return self.third(torch.relu(self.second(torch.relu(self.first(x)))))


def plain() -> nn.Module:
    """The model without torch.compile."""
    return Straight()


def compiled() -> nn.Module:
    """The model in the wrapper of torch.compile."""
    return torch.compile(Straight())


def compiled_in_place() -> nn.Module:
    """The model after its method compile()."""
    model = Straight()
    model.compile()
    return model


def parallel() -> nn.Module:
    """The model in DataParallel."""
    return nn.DataParallel(Straight())


def compiled_parallel() -> nn.Module:
    """The model in DataParallel, in the wrapper of torch.compile."""
    return torch.compile(nn.DataParallel(Straight()))


def inner_compiled() -> nn.Module:
    """A model whose second layer is in the wrapper of torch.compile."""
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))
    model[1] = torch.compile(model[1], backend="eager")
    return model
