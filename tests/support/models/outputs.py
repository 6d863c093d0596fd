"""Models that return several things by name, one of which is trained on."""

from typing import NamedTuple

from torch import Tensor, nn


class Named(nn.Module):
    """Scores beside the hidden state that they follow from, as language models return them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(3))
        self.head = nn.Linear(64, 10)

    def forward(self, inputs: Tensor, *, hidden: bool = True) -> dict[str, Tensor]:
        """A dictionary of two."""
        state = inputs
        for layer in self.layers:
            state = layer(state).tanh()
        scores = self.head(state)
        return {"hidden": state, "logits": scores} if hidden else {"logits": scores}


class Head(nn.Module):
    """A last block that makes the dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.scores = nn.Linear(24, 10)

    def forward(self, inputs: Tensor) -> dict[str, Tensor]:
        """A dictionary of one."""
        return {"logits": self.scores(inputs)}


def named() -> nn.Module:
    """One module that is divided by its trace."""
    return Named()


def in_blocks() -> nn.Module:
    """Blocks that are declared."""
    return nn.Sequential(nn.Linear(64, 24), nn.Sequential(nn.Tanh(), nn.Linear(24, 24)), Head())


class Paired(Named):
    """Scores and, where there are targets, their loss."""

    def forward(self, inputs: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """A tuple of two."""
        scores = super().forward(inputs)["logits"]
        return scores, None if targets is None else nn.functional.cross_entropy(scores, targets)


class Scored(NamedTuple):
    """Scores and the hidden state, each by its name."""

    hidden: Tensor
    logits: Tensor


class Fielded(Named):
    """The same in a named tuple."""

    def forward(self, inputs: Tensor) -> Scored:
        """A named tuple of two."""
        return Scored(**super().forward(inputs))


def fielded() -> nn.Module:
    """One that returns a named tuple."""
    return Fielded()


def paired() -> nn.Module:
    """One that returns a tuple."""
    return Paired()
