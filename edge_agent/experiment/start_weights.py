"""Weights to begin a training with, from a safetensors file (training.start_from)."""

from pathlib import Path

import safetensors
import safetensors.torch
import xxhash
from torch import nn

from shared.errors import ConfigError


def load_weights(module: nn.Module, path: Path) -> str:
    """Put the weights of a file into `module`, in place; returns the file's digest.

    Raises ConfigError, and changes nothing, unless it has exactly the module's keys with their shapes and types.
    """
    try:
        data = path.read_bytes()
        weights = safetensors.torch.load(data)
    except OSError as cause:
        raise ConfigError(f"training.start_from: {path} cannot be read: {cause.strerror}") from cause
    except (safetensors.SafetensorError, ValueError, KeyError) as cause:
        raise ConfigError(f"training.start_from: {path} is no safetensors file: {cause}") from cause
    expected = module.state_dict()
    if odd := sorted(weights.keys() ^ expected.keys()):
        problem = "is not one of the model's" if odd[0] in weights else "is missing"
        raise ConfigError(f"training.start_from: {path} does not fit the model: {odd[0]} {problem}")
    for name, tensor in expected.items():
        given = weights[name]
        if (given.shape, given.dtype) != (tensor.shape, tensor.dtype):
            raise ConfigError(
                f"training.start_from: {path} does not fit the model: {name} is {given.dtype} {tuple(given.shape)}; it must "
                f"be {tensor.dtype} {tuple(tensor.shape)}"
            )
    module.load_state_dict(weights)
    return xxhash.xxh3_128_hexdigest(data)
