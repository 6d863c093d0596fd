"""Inputs of a model as a dataset gives them: a tensor, a tuple of tensors, or tensors by the names of the forward's parameters.

Inside, they are features in a fixed order: that of the tuple, or that of the names in the alphabet, which is the same wherever
a batch is read.
"""

import inspect
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from shared.errors import ModelError
from shared.model.examples import of_length
from shared.model.features import Features, FeatureSpecs, specs_bytes, specs_of

Inputs = Tensor | tuple[Tensor, ...] | dict[str, Tensor]


@dataclass(frozen=True)
class InputSpecs:
    """The kind of a batch of inputs."""

    specs: FeatureSpecs
    names: tuple[str, ...] = ()
    """Names of the parameters that take them; none where they are taken by their places."""

    @classmethod
    def of(cls, inputs: Inputs) -> "InputSpecs":
        """Return the kind of these inputs."""
        return cls(specs_of(features_of_inputs(inputs)), names_of_inputs(inputs))

    @property
    def batch_size(self) -> int:
        """Number of samples; 0 where there is no batch."""
        return self.specs[0].shape[0] if self.specs and self.specs[0].shape else 0

    @property
    def bytes(self) -> int:
        """Bytes of the elements."""
        return specs_bytes(self.specs)

    def example(self) -> Inputs:
        """Random inputs of this kind, the same at every call."""
        return as_inputs(tuple(spec.example() for spec in self.specs), self.names)

    def on_meta(self) -> Features:
        """Return features of this kind without elements."""
        return tuple(torch.empty(spec.shape, dtype=spec.dtype, device="meta") for spec in self.specs)


def names_of_inputs(inputs: Inputs) -> tuple[str, ...]:
    """Return the names of inputs in their order; none where they have none."""
    return tuple(sorted(inputs)) if isinstance(inputs, dict) else ()


def features_of_inputs(inputs: Inputs) -> Features:
    """Return inputs in their order."""
    if isinstance(inputs, Tensor):
        return (inputs,)
    return tuple(inputs[name] for name in sorted(inputs)) if isinstance(inputs, dict) else inputs


def as_inputs(features: Features, names: tuple[str, ...]) -> Inputs:
    """Return features as the inputs that they were."""
    if names:
        return dict(zip(names, features, strict=True))
    return features[0] if len(features) == 1 else features


def with_length(inputs: Inputs, length: int) -> Inputs:
    """Return inputs with another length; see `of_length`."""
    features = of_length(features_of_inputs(inputs), length)
    return features if isinstance(inputs, tuple) else as_inputs(features, names_of_inputs(inputs))


def _check_names(module: nn.Module, names: tuple[str, ...]) -> None:
    """Refuse a name that the forward of a module lacks. Raises ModelError."""
    parameters = inspect.signature(module.forward).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return
    taken = [each.name for each in parameters if each.kind not in (each.POSITIONAL_ONLY, each.VAR_POSITIONAL)]
    for name in names:
        if name not in taken:
            raise ModelError(
                f"the inputs have the key {name!r}, which {type(module).__name__}.forward() does not take; the keys must be "
                f"names of its parameters: {', '.join(taken)}"
            )


class Named(nn.Module):
    """A module that takes inputs by name, as one that takes them by their places."""

    def __init__(self, module: nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        self.module, self._names = module, names

    def forward(self, *features: Tensor) -> Any:
        """Return what the module returns for these inputs, in the order of the names."""
        return self.module(**dict(zip(self._names, features, strict=True)))


def by_place(module: nn.Module, names: tuple[str, ...]) -> nn.Module:
    """Return a module that takes its inputs by their places. Raises ModelError for a name that it lacks."""
    if not names:
        return module
    _check_names(module, names)
    return Named(module, names)
