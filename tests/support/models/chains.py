"""Modules to make chains of, drawn at random or made for one purpose."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor, nn

from shared.model.chain import Chain
from shared.model.features import Slots, call_module, features_of
from shared.model.spec import TensorSpec

WIDTH = 6


def example(*shape: int) -> Tensor:
    return TensorSpec(shape or (4, WIDTH), torch.float32).example()


def names(chain: Chain) -> list[str]:
    return [block.name for block in chain.blocks]


def run_chain(chain: Chain, value: Tensor) -> Tensor:
    features: Slots = (value,)
    for block in chain.blocks:
        features = call_module(block.module, features)
    (output,) = features_of(features)
    return output


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.norm = nn.BatchNorm1d(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + F.relu(self.norm(self.linear(x)))


class Opaque(nn.Module):
    """Cannot be traced: what it does depends on values."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:  # opaque
            return self.linear(x)
        return -self.linear(x)


class Noisy(nn.Module):
    """Does other things in train mode than in eval mode, and draws tensors without looking at its input."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            x = x + torch.rand(WIDTH)
        return self.linear(x)


class Dithering(nn.Module):
    """Draws a tensor without looking at its input, in both modes."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x + torch.rand(WIDTH))


class Counting(nn.Module):
    """Keeps a buffer of its own up to date."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("mean", torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return self.linear(x - self.mean)


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(WIDTH, WIDTH),
    "norm": lambda: nn.BatchNorm1d(WIDTH),
    "relu": nn.ReLU,
    "relu in place": lambda: nn.ReLU(inplace=True),
    "dropout": lambda: nn.Dropout(0.3),
    "residual": Residual,
    "opaque": Opaque,
    "noisy": Noisy,
    "dithering": Dithering,
    "counting": Counting,
    "sequence": lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(inplace=True), Residual()),
}
OPERATIONS: dict[str, Callable[["Generated", Tensor], Tensor]] = {
    "functional relu": lambda _, x: F.relu(x),
    "functional dropout": lambda root, x: F.dropout(x, 0.4, root.training),
    "positional dropout": lambda root, x: F.dropout(x, training=root.training),
    "scale": lambda root, x: x * root.scale,
    "table": lambda root, x: x + root.table[: x.size(1)],
    "reshape": lambda _, x: x.view(x.size(0), 2, -1).flatten(1),
    "two paths": lambda _, x: torch.cat(x.chunk(2, dim=1)[::-1], dim=1),
    "constant": lambda _, x: x + torch.arange(WIDTH),
}


class Generated(nn.Module):
    """Layers and operations one after another."""

    def __init__(self, kinds: list[str]) -> None:
        super().__init__()
        self.kinds = kinds
        self.layers = nn.ModuleDict({str(place): LAYERS[kind]() for place, kind in enumerate(kinds) if kind in LAYERS})
        if "scale" in kinds:
            self.scale = nn.Parameter(torch.full((WIDTH,), 1.5))
        self.register_buffer("table", torch.arange(10.0), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        for place, kind in enumerate(self.kinds):
            x = self.layers[str(place)](x) if kind in LAYERS else OPERATIONS[kind](self, x)
        return x


def valid(kinds: list[str]) -> list[str]:
    """Without what torch cannot differentiate: writing to a tensor that a backward needs."""
    writable = {"linear", "norm"}
    return [
        "relu" if kind == "relu in place" and before not in writable else kind
        for before, kind in zip(["", *kinds], kinds, strict=False)
    ]


@st.composite
def generated(draw: st.DrawFn) -> Generated:
    """Modules that can be cut: whatever comes first, two linear layers come last."""
    kinds = draw(st.lists(st.sampled_from([*LAYERS, *OPERATIONS]), min_size=2, max_size=8))
    torch.manual_seed(draw(st.integers(0, 99)))
    return Generated([*valid(kinds), "linear", "relu", "linear"])


class Declared(nn.Module):
    """Layers in a list, which it declares to be its blocks."""

    def __init__(self, *parts: nn.Module) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def blocks(self) -> list[nn.Module]:
        return list(self.parts)

    def forward(self, x: Tensor) -> Tensor:
        for part in self.parts:
            x = part(x)
        return x


class Torn(Declared):
    """As `Generated`, its layers in a list that it gives itself."""

    def __init__(self, kinds: list[str]) -> None:
        super().__init__(*(LAYERS[kind]() for kind in kinds))


@st.composite
def declared(draw: st.DrawFn) -> nn.Module:
    kinds = ["linear", *draw(st.lists(st.sampled_from(list(LAYERS)), min_size=1, max_size=5))]
    torch.manual_seed(draw(st.integers(0, 99)))
    if draw(st.booleans()):
        return Torn(valid(kinds))
    return nn.Sequential(*(LAYERS[kind]() for kind in valid(kinds)))


MODULES = st.one_of(generated(), declared())
