"""Refusal of samples that are not the same whenever they are read, where their features are sent once (`deployment.recall`).

The samples of the first batch are read twice, in other batches and with other random numbers, and the generators are looked at
in between. What draws later for the first time, or rarely and from a generator of its own, is not seen here.
"""

import random
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from edge_agent.data import Collate, Dataset
from edge_agent.data.samples import BatchRequest, SampleReader
from shared.errors import ConfigError
from shared.model.inputs import features_of_inputs
from shared.model.random_state import LIBRARIES, library_states, random_state
from shared.model.snapshot import same_bits
from shared.training.losses import label_tensors

_MEND = "leave deployment.recall out, or what makes it another one"


def check_steady(dataset: Dataset, collate: Collate | None, batch_size: int) -> None:
    """Refuse samples that change. Raises ConfigError, and DataError for one that cannot be read."""
    indices = list(range(min(batch_size, len(dataset))))
    middle, name = len(indices) // 2, type(dataset).__name__
    if _draws(dataset, collate, indices):
        raise ConfigError(
            f"deployment.recall is true, and {name} or data.collate draws random numbers, so a sample is not the same in every "
            f"epoch; {_MEND}"
        )
    whole = _read(dataset, collate, indices, "one")
    halves = [_read(dataset, collate, half, "another") for half in (indices[middle:], indices[:middle]) if half]
    if not _is_joined(whole, halves[::-1]):
        raise ConfigError(
            f"deployment.recall is true, and a sample of {name} is not the same whenever it is read, or in every batch; {_MEND}"
        )


def _read(dataset: Dataset, collate: Collate | None, indices: list[int], seed: str) -> list[Tensor]:
    """Read one batch; returns its inputs and labels."""
    (inputs, labels), *_ = SampleReader(dataset, 0, collate).read([BatchRequest(indices, ("recall", seed))])
    return [*features_of_inputs(inputs), *label_tensors(labels)]


def _is_joined(whole: Sequence[Tensor], parts: Sequence[Sequence[Tensor]]) -> bool:
    """Tell whether the tensors of a batch are those of its parts, one behind the other."""
    try:
        joined = [torch.cat(several) for several in zip(*parts, strict=True)]
    except (ValueError, RuntimeError):  # other tensors, or of other shapes
        return False
    return len(joined) == len(whole) and all(map(same_bits, whole, joined))


def _draws(dataset: Dataset, collate: Collate | None, indices: list[int]) -> bool:
    """Tell whether reading a batch draws from a generator that every batch is seeded with: torch's, numpy's or `random`'s."""
    with LIBRARIES:
        pythons, numpys = random.getstate(), np.random.get_state(legacy=False)
        try:
            with random_state("recall"):
                before = torch.get_rng_state(), library_states()
                items = [dataset[index] for index in indices]
                if collate is not None:
                    collate(items)
                return not torch.equal(before[0], torch.get_rng_state()) or before[1] != library_states()
        finally:
            random.setstate(pythons)
            np.random.set_state(numpys)
