"""The device that a configuration means: how it is set up, waited for, and found to have failed."""

import os

import torch

from shared.concurrency.heap import keep_freed_memory
from shared.concurrency.threads import yield_to_others
from shared.errors import ConfigError

BUILDING_NICENESS = 10
"""Priority of a thread that builds models, as of nice(1)."""

_CUBLAS_WORKSPACE = ":4096:8"
"""With it cuBLAS sums in the same order every time; it is read when the first product is computed."""


def prepare_process(threads: int) -> None:
    """Have this process compute as all of ours do: it keeps freed memory, and an operation of torch has so many threads.

    Call it before the first thread begins. threads: 0 leaves the choice to torch.
    """
    keep_freed_memory()
    if threads:
        torch.set_num_threads(threads)


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


def prepare_device(device: torch.device, *, deterministic: bool) -> None:
    """Have a GPU compute the same bits every time, for the whole process; a CPU does so anyway.

    An operation for which torch has no such kernel warns and computes as it can. Call it before the first computation.
    """
    if device.type != "cuda" or not deterministic:
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", _CUBLAS_WORKSPACE)
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    # TF32 rounds the factors of a product to 10 bits: a step on this GPU would be another one than on the other side.
    torch.backends.cudnn.allow_tf32 = False
    torch.set_float32_matmul_precision("highest")


def synchronise(device: torch.device) -> None:
    """Wait until the device has finished its work; a CPU always has. Raises RuntimeError where that failed."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def device_failure(device: torch.device) -> str | None:
    """Explain why the device can compute nothing more in this process; None while it can.

    An assertion in a kernel ends a GPU's context with all that is in it, and only a new process gets another.
    """
    try:
        synchronise(device)
    except RuntimeError as failure:
        return str(failure)
    return None


def prepare_compute_thread() -> None:
    """Give the calling thread the process's number of torch threads.

    A new thread has OpenMP's own default until torch sets it, and a matrix product does not wait for that: the first
    ones would run on another number of threads, which is another order of sums and so other bits.
    """
    torch.set_num_threads(torch.get_num_threads())


def prepare_building_thread() -> None:
    """Prepare a thread that builds models beside the steps of others, which come first while cores are short."""
    prepare_compute_thread()
    yield_to_others(BUILDING_NICENESS)
