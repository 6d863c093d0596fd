"""From the name of a model to its chain: what both sides do at the beginning of a session, with the same result."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from shared.errors import ModelError
from shared.factory import load_factory
from shared.model.chain import Chain, build_chain
from shared.model.random_state import random_state


def build_model(
    factory: str, kwargs: Mapping[str, Any], seed: int, *, allowed_prefixes: Sequence[str] | None = None
) -> nn.Module:
    """Make the module that `factory` (`package.module:factory`) returns for `kwargs`, its weights drawn from `seed`.

    Raises ModelError when the name is not allowed or not there, when the factory fails, or returns no module.
    """
    make = load_factory(factory, allowed_prefixes=allowed_prefixes)
    try:
        with random_state(seed, "weights"):
            module = make(**kwargs)
    except Exception as cause:  # the user's own code may raise anything
        raise ModelError(f"factory {factory!r} failed with {type(cause).__name__}: {cause}") from cause
    if not isinstance(module, nn.Module):
        raise ModelError(f"factory {factory!r} returned {type(module).__name__}; it must return a torch.nn.Module")
    return module


def build_checked_chain(
    factory: str,
    kwargs: Mapping[str, Any],
    seed: int,
    example: Tensor,
    *,
    frozen: Sequence[str] = (),
    allowed_prefixes: Sequence[str] | None = None,
) -> Chain:
    """The model as a verified chain of blocks, with what is `frozen` frozen. Raises ModelError."""
    module = build_model(factory, kwargs, seed, allowed_prefixes=allowed_prefixes)
    for prefix in frozen:
        named = [p for name, p in module.named_parameters() if name == prefix or name.startswith(prefix + ".")]
        if not named:
            raise ModelError(
                f"model.frozen names {prefix!r}, but {factory!r} makes no parameter of that name or under it"
            )
        for parameter in named:
            parameter.requires_grad_(False)
    return build_chain(module, example)


def check_cut(cut: int, chain: Chain) -> None:
    """Refuse a cut that cannot be. Raises ModelError.

    A cut of 0 would send raw inputs. A cut of L leaves the trainer the loss alone, and what crosses is the model's output.
    """
    if not 1 <= cut <= len(chain.blocks):
        names = ", ".join(block.name for block in chain.blocks)
        raise ModelError(
            f"cut {cut} is out of range; this model has {len(chain.blocks)} blocks ({names[:200]}), so a cut is 1 to "
            f"{len(chain.blocks)}"
        )
    if cut == len(chain.blocks) and chain.features[-1].shape[:1] != chain.features[0].shape[:1]:
        raise ModelError(
            f"cut {cut} would send the model's output, whose shape is {chain.features[-1].shape} for a batch of "
            f"{chain.features[0].shape[0]}; what crosses a cut must have the batch first"
        )


def parse_kwargs(text: str) -> dict[str, Any]:
    """Keyword arguments from a JSON object. Raises ModelError."""
    try:
        kwargs = json.loads(text or "{}")
    except (ValueError, RecursionError) as cause:
        raise ModelError(f"the model's arguments are no JSON: {cause}") from cause
    if not isinstance(kwargs, dict):
        raise ModelError(f"the model's arguments must be a JSON object; they are {type(kwargs).__name__}")
    return kwargs
