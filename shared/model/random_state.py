"""Random state that follows the work and not the machine.

A block's dropout must be the same wherever and whenever the block runs: on either side, in the forward and in its
replay, before a restart and after. So its random state is a function of what it belongs to (seed, step, block), and
this file knows only that function and how to put it in force.
"""

import hashlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

_DEFAULT_GENERATORS = threading.Lock()
"""Held while the default generators are borrowed: stages may share a process, and F.dropout takes no generator."""
_NEXT = threading.Lock()
"""Held by the thread that borrows the generators, so that threads take turns."""
_nesting = threading.local()


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
def random_state(*parts: int | str) -> Iterator[Callable[[], None]]:
    """Run with torch's default generators (CPU, and CUDA once initialised) seeded from `parts`; then put them back.

    One thread of the process at a time is inside; the same thread may nest. Yields what a long piece of work calls now
    and then: it lets another thread that waits go first, and goes on with the random numbers where it was.
    """
    depth: int = getattr(_nesting, "depth", 0)
    if depth == 0:
        _borrow()
    _nesting.depth = depth + 1
    try:
        before = generator_states()

        def give_way() -> None:
            nonlocal before
            if depth or not _NEXT.locked():
                return
            ours = generator_states()
            _put_back(before)
            _DEFAULT_GENERATORS.release()
            _borrow()
            before = generator_states()
            _put_back(ours)

        try:
            seed = derive_seed(*parts)
            torch.default_generator.manual_seed(seed)
            if len(before) > 1:
                torch.cuda.manual_seed_all(seed)
            yield give_way
        finally:
            _put_back(before)
    finally:
        _nesting.depth = depth
        if depth == 0:
            _DEFAULT_GENERATORS.release()


def _borrow() -> None:
    with _NEXT:
        _DEFAULT_GENERATORS.acquire()


def _put_back(states: list[Tensor]) -> None:
    cpu_state, *cuda_states = states
    torch.default_generator.set_state(cpu_state)
    if cuda_states:
        torch.cuda.set_rng_state_all(cuda_states)


def generator_states() -> list[Tensor]:
    """The states of torch's default generators: the CPU's, and each CUDA device's once CUDA is initialised."""
    initialised = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return [torch.default_generator.get_state(), *(torch.cuda.get_rng_state_all() if initialised else [])]
