"""Random state that follows the work and not the machine.

A block's dropout must be the same wherever and whenever the block runs: on either side, in the forward and in its
replay, before a restart and after. So its random state is a function of seed, step and block, and
this file knows only that function and how to put it in force.
"""

import hashlib
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_DEFAULT_GENERATORS = threading.Lock()
"""Held while the default generators are borrowed: stages may share a process, and F.dropout takes no generator."""
_NEXT = threading.Lock()
"""Held by the thread that borrows the generators, so that threads take turns."""
_nesting = threading.local()
LIBRARIES = threading.RLock()
"""Held while the generators of `random` and numpy are exchanged or looked at: numpy frees the one that is exchanged although
another thread may look at it. Taken before `random_state`, never inside."""


def derive_seed(*parts: int | str) -> int:
    """A 63-bit seed, the same on every machine, from parts such as `(seed, "dropout", step, block)`.

    Parts are told apart by kind and length, so ("a", "b") and ("ab",) or 1 and "1" give different seeds.
    """
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        text = str(part).encode()
        digest.update(f"{'s' if isinstance(part, str) else 'i'}{len(text)}:".encode() + text)
    return int.from_bytes(digest.digest(), "big") >> 1


def library_states() -> tuple[object, object]:
    """The states of the generators of `random` and of numpy, to be compared."""
    with LIBRARIES:
        numpys = np.random.get_state(legacy=False)
        key, position = numpys["state"]["key"].tobytes(), numpys["state"]["pos"]
        return random.getstate(), (key, position, numpys["has_gauss"], numpys["gauss"])


class random_state:
    """Run with torch's default generators (CPU, and CUDA once initialised) seeded from `parts`; then put them back.

    One thread of the process at a time is inside; the same thread may nest.
    """

    __slots__ = ("_before", "_depth", "_seed")  # a class, because a generator takes twice as long, several times a step

    def __init__(self, *parts: int | str) -> None:
        self._seed = derive_seed(*parts)
        self._depth = 0
        self._before: list[Tensor] = []

    def __enter__(self) -> Callable[[], None]:
        """Put the random state in force; return a function that a long piece of work calls now and then.

        That function lets another waiting thread run first, and then continues with the same random numbers."""
        self._depth = getattr(_nesting, "depth", 0)
        if self._depth == 0:
            _borrow()
        _nesting.depth = self._depth + 1
        try:
            self._before = generator_states()
        except BaseException:  # of a device that has failed
            self.__exit__()
            raise
        torch.default_generator.manual_seed(self._seed)
        if len(self._before) > 1:
            torch.cuda.manual_seed_all(self._seed)
        return self._give_way

    def __exit__(self, *_: object) -> None:
        try:
            if self._before:
                _put_back(self._before)
        finally:
            _nesting.depth = self._depth
            if self._depth == 0:
                _DEFAULT_GENERATORS.release()

    def _give_way(self) -> None:
        if self._depth or not _NEXT.locked():
            return
        ours = generator_states()
        _put_back(self._before)
        _DEFAULT_GENERATORS.release()
        _borrow()
        self._before = generator_states()
        _put_back(ours)


@contextmanager
def generators_held() -> Iterator[None]:
    """Keep other threads from the default generators meanwhile, which stay as they are."""
    if getattr(_nesting, "depth", 0):
        yield
        return
    _borrow()
    _nesting.depth = 1
    try:
        yield
    finally:
        _nesting.depth = 0
        _DEFAULT_GENERATORS.release()


class GeneratorWatch(TorchFunctionMode):
    """Notes whether Python code that runs inside, as a forward that runs again in a backward, sets torch's default generators.

    It may put them back before it returns, so they are looked at with each function of torch that it calls.
    """

    def __init__(self) -> None:
        super().__init__()
        self.is_set = False
        self._before = generator_states()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """torch calls this in place of each of its functions."""
        self.is_set = self.is_set or not all(map(torch.equal, self._before, generator_states()))
        return func(*args, **(kwargs or {}))


def _borrow() -> None:
    with _NEXT:
        _DEFAULT_GENERATORS.acquire()


def _put_back(states: list[Tensor]) -> None:
    torch.default_generator.set_state(states[0])
    if len(states) > 1:
        torch.cuda.set_rng_state_all(states[1:])


def generator_states() -> list[Tensor]:
    """The states of torch's default generators: the CPU's, and each CUDA device's once CUDA is initialised."""
    initialised = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return [torch.default_generator.get_state(), *(torch.cuda.get_rng_state_all() if initialised else [])]
