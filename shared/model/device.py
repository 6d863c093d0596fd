"""The device that a configuration means."""

import torch

from shared.errors import ConfigError


def choose_device(name: str) -> torch.device:
    """`auto` is the first GPU when there is one, else the CPU. Raises ConfigError for a GPU that is not there."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    chosen = torch.device(name)
    if chosen.type == "cuda" and (chosen.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"compute.device is {name!r}, but torch sees {torch.cuda.device_count()} GPUs here; use auto or cpu"
        )
    return chosen
