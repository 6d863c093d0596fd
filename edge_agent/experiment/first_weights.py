"""First weights of a model from a safetensors file (`training.start_from`): taken whole, or refused in one sentence."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import safetensors
import safetensors.torch
import torch
import xxhash
from torch import Tensor, nn

from shared.errors import ConfigError
from shared.model.snapshot import same_bits

_NAMED = 3
"""Names that a sentence lists before it counts the others."""
_NAME_CHARACTERS = 80
_BEGINNINGS_OF_TORCH = (b"PK\x03\x04", b"\x80\x02")
"""First bytes of what torch.save writes, today and before torch 1.6."""
_CONVERTED = (
    "torch.save has written it; convert its state dict once, by safetensors.torch.save_file(torch.load(path, "
    "weights_only=True), new_path)"
)


def load_weights(module: nn.Module, path: Path) -> str:
    """Put the weights of a file into `module`, in place; returns the file's digest.

    The file has every tensor of the module's state dict, with its shape and type. One that has several names, as tied
    weights have, may stand under one of them. Buffers that the state dict leaves out may be there, too. Raises
    ConfigError, and changes nothing, for any other file.
    """
    try:
        data = path.read_bytes()
        weights = safetensors.torch.load(data)
    except OSError as cause:
        raise ConfigError(f"training.start_from: {path} cannot be read: {cause.strerror}") from cause
    except (safetensors.SafetensorError, ValueError, KeyError) as cause:
        how = _CONVERTED if data.startswith(_BEGINNINGS_OF_TORCH) else ""
        raise ConfigError(f"training.start_from: {path} is no safetensors file: {how or cause}") from cause
    targets = dict((*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)))
    if problem := _misnamed(weights, module, targets) or _unlike(weights, targets) or _contradicting(weights, targets):
        raise ConfigError(f"training.start_from: {path} does not fit the model: {problem}")
    with torch.no_grad():
        for name, given in weights.items():
            targets[name].copy_(given)
    return xxhash.xxh3_128_hexdigest(data)


def _misnamed(weights: Mapping[str, Tensor], module: nn.Module, targets: Mapping[str, Tensor]) -> str:
    """Say which tensors are missing, and which are not the model's; empty if none."""
    given = {id(targets[name]) for name in weights.keys() & targets.keys()}
    lacking = dict[int, str]()
    for name in module.state_dict():
        if id(targets[name]) not in given:
            lacking.setdefault(id(targets[name]), name)
    foreign = sorted(weights.keys() - targets.keys())
    told = [f"lacks {_listed([*lacking.values()])}"] if lacking else []
    told += [f"holds {_listed(foreign)}, which the model does not have"] if foreign else []
    return f"it {', and '.join(told)}; its tensors must have the names of the model's state dict" if told else ""


def _unlike(weights: Mapping[str, Tensor], targets: Mapping[str, Tensor]) -> str:
    """Say which tensors have another shape or type than the model's; empty if none."""
    unlike = [name for name, target in targets.items() if name in weights and _form(weights[name]) != _form(target)]
    if not unlike:
        return ""
    name, *others = unlike
    too = f"; the shapes or types of {_listed(others)} differ, too" if others else ""
    return f"{name!r} is {_form(weights[name])} and must be {_form(targets[name])}{too}"


def _contradicting(weights: Mapping[str, Tensor], targets: Mapping[str, Tensor]) -> str:
    """Say which two names of one tensor have different values; empty if none have."""
    first: dict[int, str] = {}
    for name in (name for name in targets if name in weights):
        other = first.setdefault(id(targets[name]), name)
        if not same_bits(weights[name], weights[other]):
            return f"it holds different values for {other!r} and {name!r}, which are one tensor of the model"
    return ""


def _form(tensor: Tensor) -> str:
    return f"{tensor.dtype} {tuple(tensor.shape)}"


def _listed(names: Sequence[str]) -> str:
    """The first names, and how many follow, as part of a sentence."""
    shown = [name if len(name) <= _NAME_CHARACTERS else f"{name[: _NAME_CHARACTERS - 1]}…" for name in names[:_NAMED]]
    parts = [*map(repr, shown), *([f"{len(names) - _NAMED} more"] if len(names) > _NAMED else [])]
    return " and ".join((*([", ".join(parts[:-1])] if parts[:-1] else []), parts[-1]))
