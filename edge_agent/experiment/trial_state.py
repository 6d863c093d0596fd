"""State of modules around a trial: values, attributes and gradients that are taken, compared and put back."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from shared.foreign import is_ours
from shared.model.chain import Block
from shared.model.features import Features
from shared.model.snapshot import same_bits

T = TypeVar("T")
Attributes = list[tuple[dict[str, Any], dict[str, int | float]]]
"""The attributes of each module in a block, and the numbers among them."""


def attributes_of(module: nn.Module) -> Attributes:
    """Return the attributes of a module and of those in it."""
    parts = (vars(part) for part in module.modules())
    return [(own, {name: value for name, value in own.items() if isinstance(value, int | float)}) for own in parts]


def plain_numbers(module: nn.Module) -> dict[str, int | float]:
    """Return the numbers in plain attributes of a module and of those in it, by name."""
    return {
        f"{path}.{attribute}" if path else attribute: value
        for path, part in module.named_modules()
        for attribute, value in vars(part).items()
        if isinstance(value, int | float) and attribute != "training"
    }


def values_of(block: Block) -> dict[str, Tensor]:
    """Copy the parameters of a block, by name."""
    return {name: value.detach().clone() for name, value in block.named_parameters().items()}


def has_other_values(block: Block, before: Mapping[str, Tensor]) -> bool:
    """Tell whether any parameter of a block has changed since `values_of`."""
    return not all(same_bits(value, before[name]) for name, value in block.named_parameters().items())


def detached(features: Features) -> Features:
    """Return copies, which nothing writes to."""
    return tuple(one.detach().clone() for one in features)


def taken(parameters: Iterable[Tensor]) -> list[Tensor | None]:
    """Take the gradients of parameters."""
    gradients = list[Tensor | None]()
    for parameter in parameters:
        gradients.append(parameter.grad)
        parameter.grad = None
    return gradients


def of_few(tensors: Features, samples: int) -> Features:
    """Copy the first of some samples."""
    return tuple(each[:samples].clone() for each in tensors)


def tried(run: Callable[[], T]) -> tuple[T | None, BaseException | None]:
    """Return the result of foreign code, or what it raised."""
    try:
        return run(), None
    except BaseException as cause:
        if is_ours(cause):
            raise
        return None, cause


def reached(loss: Tensor, outputs: Features) -> list[Tensor]:
    """List the leaves of a loss's graph that it reaches otherwise than by the outputs."""
    seen = {output.grad_fn for output in outputs}
    pending, found = [loss.grad_fn], list[Tensor]()
    while pending:
        node = pending.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        pending += [behind for behind, _ in node.next_functions]
        if (leaf := getattr(node, "variable", None)) is not None:
            found.append(leaf)
    return found


class Gone:
    """Parameters without their values, but those of one block at a time."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self._values = {id(each): (each, each.data) for each in parameters}

    def __enter__(self) -> "Gone":
        for parameter, values in self._values.values():
            parameter.data = _nothing_like(values)
        return self

    def __exit__(self, *_: object) -> None:
        for parameter, values in self._values.values():
            parameter.data = values

    @contextmanager
    def but(self, parameters: Iterable[nn.Parameter]) -> Iterator[None]:
        """Have these back while the body runs."""
        pairs = [self._values[id(each)] for each in parameters]
        for parameter, values in pairs:
            parameter.data = values
        yield  # what it raises ends all
        for parameter, values in pairs:
            parameter.data = _nothing_like(values)

    @contextmanager
    def hide(self, parameters: Callable[[], Iterable[nn.Parameter]]) -> Iterator[None]:
        """Have those among these that learn gone, too, while the body runs."""
        hidden = [each for each in parameters() if each.requires_grad]
        for parameter in hidden:
            parameter.data = _nothing_like(parameter.data)
        try:
            yield
        finally:
            for parameter in hidden:
                parameter.data = self._values[id(parameter)][1]


def _nothing_like(values: Tensor) -> Tensor:
    nothing = torch.nan if values.is_floating_point() or values.is_complex() else 0
    return torch.full((), nothing, dtype=values.dtype, device=values.device).expand(values.shape)
