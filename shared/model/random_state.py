"""Random state that follows the work and not the machine.

A block's dropout must be the same wherever and whenever the block runs: on either side, in the forward and in its
replay, before a restart and after. So its random state is a function of what it belongs to (seed, step, block), and
this file knows only that function and how to put it in force.
"""

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

_DEFAULT_GENERATORS = threading.RLock()
"""Held while the default generators are borrowed: stages may share a process, and F.dropout takes no generator."""


def derive_seed(*parts: int | str) -> int:
    """A 63-bit seed, the same on every machine, from parts such as `(seed, "dropout", step, block)`.

    Parts are told apart by kind and length, so ("a", "b") and ("ab",) or 1 and "1" give different seeds.
    """
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        text = str(part).encode()
        digest.update(f"{'s' if isinstance(part, str) else 'i'}{len(text)}:".encode() + text)
    return int.from_bytes(digest.digest(), "big") >> 1


@contextmanager
def random_state(*parts: int | str) -> Iterator[None]:
    """Run with torch's default generators (CPU, and CUDA once initialised) seeded from `parts`; then put them back.

    One thread of the process at a time is inside; the same thread may nest.
    """
    seed = derive_seed(*parts)
    with _DEFAULT_GENERATORS:
        cpu_state, *cuda_states = generator_states()
        torch.default_generator.manual_seed(seed)
        if cuda_states:
            torch.cuda.manual_seed_all(seed)
        try:
            yield
        finally:
            torch.default_generator.set_state(cpu_state)
            if cuda_states:
                torch.cuda.set_rng_state_all(cuda_states)


def generator_states() -> list[Tensor]:
    """The states of torch's default generators: the CPU's, and each CUDA device's once CUDA is initialised."""
    initialised = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return [torch.default_generator.get_state(), *(torch.cuda.get_rng_state_all() if initialised else [])]
