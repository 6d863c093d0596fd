"""Memory that the training of a model takes, computed before any of it is taken.

The model is built and run forward on torch's meta device, where tensors have shapes and no bytes. A model that cannot be
built so (its factory looks at values) is built in earnest within bounds; then its forward is measured, on meta tensors in
place of its own where that goes and on two samples otherwise.
"""

import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, UntypedStorage, nn
from torch.autograd.graph import saved_tensors_hooks

from shared.errors import ModelError, NotAllowedError, TooLargeError
from shared.factory import Allowed, load_factory
from shared.foreign import described, foreign_code
from shared.model.budget import BuildLimits
from shared.model.build import ALL_LEARN, build_model, freeze
from shared.model.features import Features, FeatureSpecs
from shared.model.inputs import InputSpecs, by_place
from shared.model.learning import Learning
from shared.model.random_state import random_state
from shared.model.snapshot import unchanged

# A factory that loads weights does so on the meta device too, to no effect, which torch says for each of them.
warnings.filterwarnings("ignore", message="for .*: copying from a non-meta parameter")

OptimizerBytes = Callable[[Iterable[nn.Parameter]], int]
"""Function that gives the bytes of the optimizer's state for parameters, which may be on the meta device."""

_FEW_SAMPLES = 2
"""The least that a batch norm takes in train mode."""


class UpdateMemory(NamedTuple):
    """Memory that updates take beside the weights."""

    optimizer_bytes: OptimizerBytes
    copies: int = 1
    """Copies of each parameter that learns: the gradient of a batch, and where there are any the sum of those before it, and
    predicted weights."""


def estimate_training_bytes(
    factory: str,
    kwargs: Mapping[str, Any],
    example: InputSpecs,
    updates: UpdateMemory,
    *,
    learning: Learning = ALL_LEARN,
    allowed: Allowed | None = None,
    limits: BuildLimits | None = None,
) -> int | None:
    """Bytes that a step over a batch like `example` takes; None where the meta device cannot tell.

    limits: of modules and seconds. Raises ModelError for a factory
    that is not there, or not allowed, TooLargeError beyond the limits; other failures inside it occur again, in words,
    when the model is built.
    """
    load_factory(factory, allowed=allowed)  # its module is imported before meta is the default
    try:
        with torch.device("meta"):
            module = build_model(factory, kwargs, 0, allowed=allowed, limits=limits)
        freeze(module, learning)
        if any(not tensor.is_meta for tensor in (*module.parameters(), *module.buffers())):
            return None
        return state_bytes(module, updates) + _activation_bytes(by_place(module, example.names), example.on_meta())
    except (NotAllowedError, TooLargeError):
        raise
    except ModelError:  # the user's own code, on a device that it was not written for
        return None


def training_bytes(module: nn.Module, example: InputSpecs, updates: UpdateMemory) -> int:
    """The same for a module that is there. Raises ModelError where its forward fails."""
    return state_bytes(module, updates) + activation_bytes(by_place(module, example.names), example.specs)


def activation_bytes(module: nn.Module, inputs: FeatureSpecs, answered: Collection[int] = ()) -> int:
    """Bytes that autograd keeps of one forward over features like `inputs`. Raises ModelError where the forward fails.

    answered: the slots that take an error gradient, because something before the module learns.
    """
    values = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    shadows = {name: value.detach().to("meta").requires_grad_(value.requires_grad) for name, value in values.items()}
    features = tuple(torch.empty(spec.shape, dtype=spec.dtype, device="meta") for spec in inputs)
    try:
        with torch.device("meta"):
            return _activation_bytes(module, _with_gradient(features, answered), shadows)
    except ModelError:  # its forward looks at values
        whole = inputs[0].shape[0]
        samples = min(_FEW_SAMPLES, whole)
        features = tuple(spec.example(samples) for spec in inputs)
        return _activation_bytes(module, _with_gradient(features, answered)) * whole // samples


def _with_gradient(features: Features, answered: Collection[int]) -> Features:
    """The features, some as the outputs of something that learns: a block may write to them."""
    return tuple(
        tensor.requires_grad_().clone() if slot in answered else tensor for slot, tensor in enumerate(features)
    )


def state_bytes(module: nn.Module, updates: UpdateMemory) -> int:
    """Bytes of weights, gradients, optimizer state and buffers, and of one more copy of all but the gradients: a block
    that arrives, its frozen weights included, is held beside the one that it replaces."""
    learnt = sum(value.nbytes for value in module.parameters() if value.requires_grad)
    return 2 * state_copy_bytes(module, updates) + updates.copies * learnt


def state_copy_bytes(module: nn.Module, updates: UpdateMemory) -> int:
    """Bytes of weights, optimizer state and buffers."""
    parameters = sum(parameter.nbytes for parameter in module.parameters())
    return parameters + updates.optimizer_bytes(module.parameters()) + sum(buffer.nbytes for buffer in module.buffers())


def _activation_bytes(module: nn.Module, inputs: Features, values: Mapping[str, Tensor] | None = None) -> int:
    """Bytes that autograd would keep of one forward, the same storage counted once; the module is left as it was.

    values: parameters and buffers to run with in place of the module's own. Raises ModelError where the forward fails.
    """
    own_values = module.parameters() if values is None else values.values()
    own = {value.untyped_storage()._cdata for value in own_values}
    saved: dict[int, UntypedStorage] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in own:
            saved[storage._cdata] = storage
        return tensor.detach()  # an operation that keeps its own output would never be freed

    def failure(cause: BaseException) -> ModelError:
        return ModelError(
            f"{type(module).__name__} fails on an input of shape {tuple(inputs[0].shape)}: {described(cause)}"
        )

    changes = nullcontext() if inputs[0].is_meta and values is None else unchanged(module)
    with foreign_code(failure), changes, random_state("footprint"), saved_tensors_hooks(keep, _as_kept):
        if values is None:
            module(*inputs)
        else:
            torch.func.functional_call(module, dict(values), inputs)
    return sum(storage.nbytes() for storage in saved.values())


def _as_kept(kept: Tensor) -> Tensor:
    return kept  # a forward that takes derivatives goes backward
