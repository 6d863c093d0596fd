"""Models of kinds that public bug reports tell of: of some a divided run is exact, the others are refused."""

from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations, parametrize, prune, spectral_norm, weight_norm
from torch.utils.checkpoint import checkpoint

WIDTH = 16


def between(*middle: nn.Module) -> nn.Module:
    """A chain for vectors of 64 with these blocks in its middle."""
    return nn.Sequential(nn.Linear(64, WIDTH), nn.Tanh(), *middle, nn.Linear(WIDTH, 10))


def layer() -> nn.Linear:
    return nn.Linear(WIDTH, WIDTH)


def old_weight_norm() -> nn.Module:
    return between(weight_norm(layer()), nn.ReLU(), weight_norm(layer()))


def old_spectral_norm() -> nn.Module:
    return between(spectral_norm(layer()), nn.ReLU(), spectral_norm(layer()))


def new_norms() -> nn.Module:
    return between(parametrizations.spectral_norm(layer()), nn.ReLU(), parametrizations.weight_norm(layer()))


def pruned() -> nn.Module:
    first, second = layer(), layer()
    prune.l1_unstructured(first, "weight", 0.5)
    prune.random_structured(second, "weight", amount=0.25, dim=0)
    return between(first, nn.ReLU(), second)


def left_in_evaluation() -> nn.Module:
    """A factory that leaves a batch-norm in evaluation, from which a loop's `train()` calls it back."""
    net = between(layer(), nn.BatchNorm1d(WIDTH), nn.Sequential(layer(), nn.BatchNorm1d(WIDTH)))
    net[3].eval()
    net[4][1].eval()
    return net


class _Held(nn.BatchNorm1d):
    """A batch-norm that stays in evaluation."""

    def train(self, mode: bool = True) -> "_Held":  # noqa: ARG002 - as nn.Module has it
        super().train(False)
        return self


def held_in_evaluation() -> nn.Module:
    return between(layer(), _Held(WIDTH), nn.Sequential(layer(), _Held(WIDTH)))


def hooked_layers() -> nn.Module:
    """A chain whose layers change gradients as they pass."""
    net = between(layer(), nn.ReLU())
    net[2].register_full_backward_hook(lambda _module, at_inputs, _: (at_inputs[0].clamp(-0.01, 0.01),))
    net[4].register_full_backward_pre_hook(lambda _module, at_outputs: (at_outputs[0] * 0.5,))
    return net


def hooked_parameters() -> nn.Module:
    net = between(layer(), nn.ReLU())
    for index in (0, 2, 4):
        net[index].weight.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))
    return net


def hooked_sums() -> nn.Module:
    """A chain with hooks that are called once gradients have been added."""
    net = between(layer())
    net[2].weight.register_post_accumulate_grad_hook(_halve)
    return net


def updating() -> nn.Module:
    """A chain with a hook that updates a weight by an optimizer of its own, as PyTorch's tutorial has it."""
    net = between(layer())
    optimizer = torch.optim.SGD([net[2].weight], lr=0.05)

    def update(_parameter: Tensor) -> None:
        optimizer.step()
        optimizer.zero_grad()

    net[2].weight.register_post_accumulate_grad_hook(update)
    return net


def _halve(parameter: Tensor) -> None:
    assert parameter.grad is not None
    parameter.grad.mul_(0.5)


class _Initialising(nn.Module):
    """Scale and shift that the first batch decides (Glow's ActNorm). as_buffer: whether a buffer knows that it has come."""

    def __init__(self, as_buffer: bool) -> None:
        super().__init__()
        self.scale, self.bias = nn.Parameter(torch.ones(WIDTH)), nn.Parameter(torch.zeros(WIDTH))
        self.done: Tensor | bool = False
        if as_buffer:
            del self.done
            self.register_buffer("done", torch.tensor(False))

    def forward(self, value: Tensor) -> Tensor:
        """[B, WIDTH], in the first batch with a mean of 0 and a deviation of 1."""
        if self.training and not bool(self.done):
            with torch.no_grad():
                self.bias.copy_(-value.mean(0))
                self.scale.copy_(1 / (value.std(0) + 1e-6))
            self.done = torch.tensor(True) if isinstance(self.done, Tensor) else True
        return (value + self.bias) * self.scale


def initialised(as_buffer: bool) -> nn.Module:
    return between(_Initialising(as_buffer), layer(), _Initialising(as_buffer))


class _Checkpointed(nn.Sequential):
    """Layers whose forward runs again in their backward, by the user's own call."""

    def forward(self, value: Tensor) -> Tensor:
        return checkpoint(super().forward, value, use_reentrant=True) if self.training else super().forward(value)


def checkpointed() -> nn.Module:
    return between(_Checkpointed(layer(), nn.Tanh()), nn.ReLU(), _Checkpointed(layer(), nn.Dropout(0.2)))


class _Derived(nn.Module):
    """The derivative of an energy by its input, as of forces."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = layer()

    def forward(self, value: Tensor) -> Tensor:
        with torch.enable_grad():
            at = value if value.requires_grad else value.detach().requires_grad_()
            return torch.autograd.grad(self.layer(at).tanh().square().sum(), at, create_graph=True)[0]


def derived() -> nn.Module:
    return between(_Derived(), layer())


class Declared(nn.Module):
    """Three blocks, whose module lets less than all of the gradient pass between the first two."""

    def __init__(self, between: str) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(64, WIDTH), layer(), nn.Linear(WIDTH, 10)
        self._between = between

    def blocks(self) -> list[nn.Module]:
        return [self.first, self.second, self.third]

    def forward(self, value: Tensor) -> Tensor:
        if self._between == "no_grad":
            with torch.no_grad():
                return self.third(self.second(self.first(value)))
        value = self.first(value)
        if self._between == "hook" and value.requires_grad:
            value.register_hook(lambda gradient: gradient * 3)
        return self.third(self.second(value.detach() if self._between == "detach" else value))


def hooked_whole() -> nn.Module:
    net = between(layer())
    net.register_full_backward_pre_hook(lambda _module, at_outputs: (at_outputs[0] * 2,))
    return net


class Cached(nn.Module):
    """A model that computes a parametrized weight once for two uses."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.twice = nn.Linear(64, WIDTH), parametrizations.weight_norm(layer())
        self.last = nn.Linear(WIDTH, 10)

    def forward(self, value: Tensor) -> Tensor:
        with parametrize.cached():
            return self.last(self.twice(self.twice(self.first(value).tanh()).relu()))


def tied_by_memory() -> nn.Module:
    net = between(layer(), nn.ReLU(), layer())
    net[4].weight.data = net[2].weight.data
    return net


class _Switching(nn.Linear):
    """A layer that learns, or does not, from its eighth batch on."""

    def __init__(self, learns_first: bool) -> None:
        super().__init__(WIDTH, WIDTH)
        self.register_buffer("batches", torch.tensor(0))
        self._learns_first = learns_first
        self.weight.requires_grad_(learns_first)

    def forward(self, value: Tensor) -> Tensor:
        if self.training:
            self.batches += 1
            self.weight.requires_grad_(self._learns_first is not (int(self.batches) > 8))
        return super().forward(value)


def switching(learns_first: bool) -> nn.Module:
    return between(_Switching(learns_first), nn.ReLU())


class _Merging(nn.Linear):
    """A layer with an adapter that evaluation adds to its weight (loralib)."""

    def __init__(self, first: float) -> None:
        super().__init__(WIDTH, WIDTH)
        self.weight.requires_grad_(False)
        self.down, self.up = nn.Parameter(torch.randn(2, WIDTH)), nn.Parameter(first * torch.randn(WIDTH, 2))
        self.merged = False

    def train(self, mode: bool = True) -> "_Merging":
        super().train(mode)
        if self.merged is mode:
            self.weight.data += (self.up @ self.down) * (-1 if mode else 1)
            self.merged = not mode
        return self

    def forward(self, value: Tensor) -> Tensor:
        made = super().forward(value)
        return made if self.merged else made + value @ self.down.T @ self.up.T


def merging(first: float) -> nn.Module:
    return between(_Merging(first), nn.ReLU())


class _Late(nn.Module):
    """A layer that makes a buffer of its first input."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = layer()

    def forward(self, value: Tensor) -> Tensor:
        if not hasattr(self, "mean"):
            self.register_buffer("mean", value.detach().mean(0))
        return self.layer(value - self.mean)


def late_buffer() -> nn.Module:
    return between(_Late())


def lazy() -> nn.Module:
    return between(nn.LazyLinear(WIDTH))


@cache
def _kept() -> nn.Linear:
    return layer()


def kept_by_the_factory() -> nn.Module:
    return between(_kept())


class _Looked(nn.Module):
    """A table of vectors of which as many are summed as the input has signs."""

    def __init__(self, max_norm: float | None) -> None:
        super().__init__()
        self.table, self._max_norm = nn.Parameter(torch.randn(2, WIDTH)), max_norm

    def forward(self, value: Tensor) -> Tensor:
        signs = (value > 0).long()
        return functional.embedding(signs, self.table, sparse=True, max_norm=self._max_norm).mean(1) + value


def looked_up(max_norm: float | None = None) -> nn.Module:
    return between(_Looked(max_norm), layer())
