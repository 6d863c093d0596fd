"""Features, which pass between two blocks as a tuple of tensors, and their specs, which describe each of these tensors.

A tensor's place in the tuple is its slot. A module takes the features before it as its positional arguments and returns a
tensor, or a tuple of tensors, as torch's own pipelines have it. Only floating-point tensors have error gradients.
"""

import torch
from torch import Tensor, nn

from shared.model.spec import TensorSpec

Features = tuple[Tensor, ...]
Slots = tuple[Tensor | None, ...]
"""Tensors of features that are here, slot by slot: None where no block here reads one."""
Gradients = tuple[Tensor | None, ...]
"""Error gradients at features, slot by slot: None where there is none."""
FeatureSpecs = tuple[TensorSpec, ...]
"""Shape and type of each of the tensors that cross at one block, slot by slot."""


def specs_of(features: Features) -> FeatureSpecs:
    """Return the shape and the type of each of the tensors."""
    return tuple(map(TensorSpec.of, features))


def features_of(tensors: Slots) -> Features:
    """Tensors that are all there."""
    return tuple(tensor for tensor in tensors if tensor is not None)


def flat_numbers(tensor: Tensor) -> Tensor:
    """All real numbers of a tensor in one row: of a complex one both parts."""
    detached = tensor.detach()
    return (torch.view_as_real(detached.resolve_conj()) if detached.is_complex() else detached).reshape(-1)


def specs_bytes(specs: FeatureSpecs) -> int:
    """Bytes of all that crosses, uncompressed."""
    return sum(spec.bytes for spec in specs)


def call_module(module: nn.Module, features: Slots, values: dict[str, Tensor] | None = None) -> Features:
    """Run a module on features. Raises the module's errors.

    Where it is given None, which it does not read, it returns None. values: parameters and buffers by name, to run with in
    place of the module's own.
    """
    output = module(*features) if values is None else torch.func.functional_call(module, values, features)
    return output if isinstance(output, tuple) else (output,)
