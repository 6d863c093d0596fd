"""Random numbers of a user's own code that depend on what is read alone: the generators of torch, `random` and numpy are seeded
before it, and put back after it."""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
from numpy.random import mtrand

from shared.model.random_state import LIBRARIES, derive_seed, random_state


@contextmanager
def drawing(numpys: np.random.BitGenerator, *parts: int | str) -> Iterator[Callable[[], None]]:
    """Have all generators seeded from `parts` meanwhile; yields what `random_state` does.

    numpys: the one that numpy draws from meanwhile. To copy the state of its own would take longer than to read a batch.
    """
    with LIBRARIES:
        python_state, numpys_own = random.getstate(), mtrand.get_bit_generator()
        mtrand.set_bit_generator(numpys)
        try:
            with random_state(*parts) as give_way:
                seed = derive_seed(*parts)
                random.seed(seed)
                np.random.seed(seed % 2**32)
                yield give_way
        finally:
            random.setstate(python_state)
            mtrand.set_bit_generator(numpys_own)


@contextmanager
def spare_restored() -> Iterator[None]:
    """Give numpy its spare normal number back afterwards, which it drops when its generator is another."""
    with LIBRARIES:
        before = np.random.get_state(legacy=False)
    try:
        yield
    finally:
        if before["has_gauss"]:
            with LIBRARIES:
                now = np.random.get_state(legacy=False)
                np.random.set_state({**now, "has_gauss": before["has_gauss"], "gauss": before["gauss"]})
