"""What training a model takes of memory, before any of it is taken.

The model is built and run forward on torch's meta device, where tensors have shapes and no bytes. A factory that cannot be
built so (it loads weights, or looks at values) has no estimate before it is there.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, UntypedStorage, nn
from torch.autograd.graph import saved_tensors_hooks

from shared.factory import load_factory
from shared.model.build import build_model
from shared.model.spec import TensorSpec


def estimate_training_bytes(
    factory: str,
    kwargs: Mapping[str, Any],
    example: TensorSpec,
    states: int,
    *,
    allowed_prefixes: Sequence[str] | None = None,
) -> int | None:
    """Bytes that a step over a batch like `example` takes; None where the meta device cannot tell.

    states: tensors that the optimizer keeps for a parameter. Raises ModelError for a factory that is not there, or not
    allowed; what fails inside it fails again, in words, when the model is built in earnest.
    """
    load_factory(factory, allowed_prefixes=allowed_prefixes)  # its module is imported before meta is the default
    try:
        with torch.device("meta"):
            module = build_model(factory, kwargs, 0, allowed_prefixes=allowed_prefixes)
            inputs = torch.empty(example.shape, dtype=example.dtype)
        if any(not tensor.is_meta for tensor in (*module.parameters(), *module.buffers())):
            return None
        return state_bytes(module, states) + _activation_bytes(module, inputs)
    except Exception:  # the user's own code, on a device that it was not written for
        return None


def state_bytes(module: nn.Module, states: int) -> int:
    """Bytes of weights, gradients, optimizer state and buffers, and of one more copy of all but the gradients: a block
    that arrives is held beside the one that it replaces."""
    parameters = sum(parameter.nbytes for parameter in module.parameters())
    buffers = sum(buffer.nbytes for buffer in module.buffers())
    return parameters * (2 * (1 + states) + 1) + 2 * buffers


def _activation_bytes(module: nn.Module, inputs: Tensor) -> int:
    """Bytes that autograd would keep of one forward, the same storage counted once."""
    own = {parameter.untyped_storage()._cdata for parameter in module.parameters()}
    kept: dict[int, UntypedStorage] = {}

    def keep(tensor: Tensor) -> None:  # its storage alone: an operation that keeps its own output would never be freed
        storage = tensor.untyped_storage()
        if storage._cdata not in own:
            kept[storage._cdata] = storage

    with saved_tensors_hooks(keep, _never_unpacked):
        module(inputs)
    return sum(storage.nbytes() for storage in kept.values())


def _never_unpacked(_: object) -> Tensor:
    raise AssertionError("nothing goes backward here")
