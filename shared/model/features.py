"""Features, which pass between two blocks as a tuple of tensors, and their specs, which describe each of these tensors.

A tensor's place in the tuple is its slot. A module takes the features before it as its positional arguments and returns a
tensor, or a tuple of tensors, as torch's own pipelines have it. Only floating-point tensors have error gradients.
"""

import torch
from torch import Tensor, nn

from shared.model.spec import TensorSpec

Features = tuple[Tensor, ...]
Gradients = tuple[Tensor | None, ...]
"""Error gradients at features, slot by slot: None where there is none."""
FeatureSpecs = tuple[TensorSpec, ...]
"""Shape and type of each of the tensors that cross at one block, slot by slot."""


def specs_bytes(specs: FeatureSpecs) -> int:
    """Bytes of all that crosses, uncompressed."""
    return sum(spec.bytes for spec in specs)


def call_module(module: nn.Module, features: Features, values: dict[str, Tensor] | None = None) -> Features:
    """Run a module on features. Raises the module's errors.

    values: parameters and buffers by name, to run with in place of the module's own.
    """
    output = module(*features) if values is None else torch.func.functional_call(module, values, features)
    return output if isinstance(output, tuple) else (output,)
