"""The precision in which a forward and a loss compute: that of the weights, or a shorter one where torch finds it safe."""

import warnings
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial

import torch
from torch import nn

from shared.errors import ConfigError
from shared.model.chain import Chain
from shared.model.features import call_module
from shared.model.inputs import Inputs, features_of_inputs
from shared.model.random_state import random_state
from shared.model.snapshot import unchanged
from shared.registry import Precision
from shared.training.recipe import Recipe

_Types = tuple[tuple[torch.dtype, ...], ...]
_HOST = torch.device("cpu")
_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def computing(precision: Precision, device: torch.device = _HOST) -> AbstractContextManager[object]:
    """Have this thread compute in a precision while the body runs. A backward belongs outside: it follows its forward."""
    return computing_in(precision, device)()


def computing_in(precision: Precision, device: torch.device) -> Callable[[], AbstractContextManager[object]]:
    """Return the maker of the contexts of `computing`, for who needs one at every step."""
    return nullcontext if precision == "fp32" else partial(torch.autocast, device.type, _TYPES[precision])


def check_precision(precision: Precision, device: torch.device, worker: str) -> None:
    """Refuse a precision in which a device does not compute. worker: its name. Raises ConfigError."""
    if precision == "fp32":
        return
    with warnings.catch_warnings(action="ignore"), computing(precision, device):
        ones = torch.ones(2, 2, device=device)
        computes = computed_type(ones) is _TYPES[precision]
    if not computes:
        raise ConfigError(
            f'training.precision is "{precision}", in which {device.type} of worker {worker!r} does not compute; use "fp32", '
            "or another device"
        )


def with_types(chain: Chain, precisions: Iterable[Precision], inputs: Inputs) -> Chain:
    """Return the chain with the types of its features in other precisions; of a batch of inputs, two samples tell them."""
    types: dict[str, _Types] = {precision: _types_in(precision, chain, inputs) for precision in precisions}
    return replace(chain, types=types) if types else chain


def _types_in(precision: Precision, chain: Chain, inputs: Inputs) -> _Types:
    features = tuple(tensor[:2].clone() for tensor in features_of_inputs(inputs))
    types = [tuple(tensor.dtype for tensor in features)]
    with unchanged(chain.module), random_state("types"), torch.no_grad(), computing(precision):
        for block in chain.blocks:
            features = call_module(block.module.train(), features)
            types.append(tuple(tensor.dtype for tensor in features))
        for block in chain.blocks:
            block.module.train(chain.module.training)
    return tuple(types)


def check_weights(module: nn.Module, recipe: Recipe) -> None:
    """Refuse weights that a scaled loss cannot update: their gradients would be in float16 still. Raises ConfigError."""
    for name, parameter in module.named_parameters() if recipe.is_scaled else ():
        if parameter.requires_grad and parameter.dtype is torch.float16:
            raise ConfigError(
                f'training.precision is "fp16", and parameter {name!r} is in float16 already; weights that learn must be in '
                "float32, and autocast computes with them in float16"
            )


def computed_type(ones: torch.Tensor) -> torch.dtype | None:
    """Return the type of a product; None where the device has none of these."""
    try:
        return (ones @ ones).dtype
    except RuntimeError:
        return None
