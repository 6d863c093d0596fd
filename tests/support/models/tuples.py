"""A chain whose blocks pass several tensors on, which nothing that cuts modules makes yet: put together by hand."""

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shared.model.behaviour import behaviour_of
from shared.model.chain import Block, Chain
from shared.model.features import call_module, specs_of
from shared.model.random_state import random_state
from shared.model.spec import TensorSpec
from shared.model.state_entries import assign_state
from shared.model.values.wiring import Wiring, connect

WIDTH, CLASSES = 6, 3


class Forked(nn.Module):
    """Two tensors of one."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.skip, self.norm = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2), nn.BatchNorm1d(WIDTH)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.norm(self.stem(x)), self.skip(x)


class Masked(nn.Module):
    """Writes to its first input, hands the second on as it came, and adds a tensor of integers."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)

    def forward(self, x: Tensor, skip: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = F.dropout(self.norm(self.linear(x.add_(1.0))), 0.3, self.training)
        return y, skip, (y.detach() > 0).to(torch.int64)


class Gathered(nn.Module):
    """Takes one of two float tensors in, and hands the integers on."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.linear = nn.Embedding(2, WIDTH), nn.Linear(2, WIDTH)

    def forward(self, x: Tensor, skip: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        return x * self.linear(skip) + self.table(mask).sum(1), mask


class Joined(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.linear(F.relu(x) * mask)


class FickleGathered(Gathered):
    """Hands on no gradient of one of its floats, or of neither, as they are."""

    def forward(self, x: Tensor, skip: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        choice = int(float(skip.detach()[0, 0]) > 0) + 2 * int(float(x.detach()[0, 0]) > 0)
        return super().forward(x.detach() if choice & 1 else x, skip.detach() if choice & 2 else skip, mask)


class FickleJoined(Joined):
    """Hands on no gradient of its float, as it is."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return super().forward(x.detach() if float(x.detach()[0, 0]) > 0 else x, mask)


class Tupled(nn.Module):
    """Boundaries: a float; two floats; two floats and an integer; a float and an integer; a float."""

    def __init__(self, *, fickle: bool = False) -> None:
        super().__init__()
        last = [FickleGathered(), FickleJoined()] if fickle else [Gathered(), Joined()]
        self.parts = nn.ModuleList([Forked(), Masked(), *last])

    def forward(self, x: Tensor) -> Tensor:
        features: tuple[Tensor, ...] = (x,)
        for part in self.parts:
            features = call_module(part, features)
        return features[0]


CUTS = (1, 2, 3)
PASSED: tuple[tuple[int | None, ...], ...] = ((None, None), (None, 1, None), (None, 2), (None,))
"""By part and output, the slot of the input that it is."""


def tupled(seed: int = 0, *, fickle: bool = False) -> Tupled:
    """fickle: with blocks that hand on a gradient of some slots in some steps."""
    with random_state("tupled", seed):
        return Tupled(fickle=fickle)


def tupled_chain(module: Tupled, batch: int) -> Chain:
    """The chain of the module's parts."""
    named = [(f"parts.{index}", part) for index, part in enumerate(module.parts)]
    states = assign_state(module, named)
    persistent = frozenset(id(buffer) for buffer in module.buffers())
    features = (TensorSpec((batch, WIDTH), torch.float32).example(),)
    specs = [specs_of(features)]
    for part in copy.deepcopy(module.parts):
        features = call_module(part, features)
        specs.append(specs_of(features))
    shadow = copy.deepcopy(module.parts)
    behaviours = tuple(
        behaviour_of(part, inputs, persistent, draws_random=False) for part, inputs in zip(shadow, specs, strict=False)
    )
    blocks = tuple(
        Block(index, name, part, isinstance(part, Masked), isinstance(part, Masked), states[index])
        for index, (name, part) in enumerate(named)
    )
    wirings = [
        Wiring.opaque(frozenset(entry.name for entry in state.entries if entry.is_parameter), len(inputs), passed)
        for state, inputs, passed in zip(states, specs, PASSED, strict=False)
    ]
    return Chain(module, blocks, tuple(specs), connect(wirings, 1), (), False, behaviours)
