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


def prepare_compute_thread() -> None:
    """Give the calling thread the process's number of torch threads.

    A new thread has OpenMP's own default until torch sets it, and a matrix product does not wait for that: the first
    ones would run on another number of threads, which is another order of sums and so other bits.
    """
    torch.set_num_threads(torch.get_num_threads())
