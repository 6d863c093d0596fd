"""The order of samples that a user's own function decides: `data.sampler`, `data.sample_weights`, `data.batch_sampler`.

Like the order that is drawn without one, it is a function of seed and epoch, so a run that goes on needs no state of it.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from edge_agent.data.described import kind_of, layout_of
from edge_agent.data.randomness import drawing, spare_restored
from shared.errors import DataError
from shared.factory import load_factory
from shared.foreign import described, foreign_code, place_of
from shared.model.random_state import derive_seed

Chosen = Tensor | tuple[Tensor, ...]
"""Samples of an epoch, int64 [N]; or those of each of its batches."""
_WHOLE = {torch.int64, torch.int32, torch.int16, torch.int8, torch.uint64, torch.uint32, torch.uint16, torch.uint8}


class SampleOrder:
    """The samples of each epoch, as a function gives them. Raises DataError for what names no samples."""

    def __init__(
        self, key: str, name: str, call: Callable[[int], Any], samples: int, seed: int, most: int | None = None
    ) -> None:
        """key, name: of the configuration, for the sentences. call: returns what the function gives for an epoch. samples: of
        the data set. most: samples of a batch, where there are batches; None where there is one list."""
        self._key = f"{key}: {name!r}"
        self._call = call
        self._samples = samples
        self._seed = seed
        self._most = most
        self._last = 0, self._made(0)
        self.count = len(self._last[1])
        """Samples of an epoch, or batches where the function makes them."""
        if not self.count:
            raise DataError(f"{self._key} gives no samples")
        if not _same(self._made(0), self._last[1]):
            raise DataError(
                f"{self._key} gives other samples when it is asked again for the same seed and epoch, so a run could not go on "
                "after a stop; let them decide it"
            )

    @property
    def makes_batches(self) -> bool:
        """Tell whether the function decides the batches, too."""
        return self._most is not None

    def of(self, epoch: int) -> Chosen:
        """Return the samples of an epoch."""
        if self._last[0] != epoch:
            made = self._made(epoch)
            if len(made) != self.count:
                what = "batches" if self.makes_batches else "samples"
                raise DataError(
                    f"{self._key} gives {len(made)} {what} for epoch {epoch} and {self.count} for epoch 0; each epoch must "
                    "have as many"
                )
            self._last = epoch, made
        return self._last[1]

    def pool(self, epoch: int) -> Tensor:
        """Return all samples of an epoch."""
        made = self.of(epoch)
        return torch.cat(made) if isinstance(made, tuple) else made

    def _made(self, epoch: int) -> Chosen:
        def failure(cause: BaseException) -> DataError:
            if isinstance(cause, DataError):
                return cause
            place = f" ({place})" if (place := place_of(cause)) else ""
            return DataError(f"{self._key} failed with {described(cause)}{place}")

        with foreign_code(failure), spare_restored(), drawing(np.random.MT19937(), self._seed, "sampler", epoch):
            made = self._call(epoch)
            if not isinstance(made, Tensor | np.ndarray):
                made = list(made) if isinstance(made, Iterable) else made
        if self._most is None:
            return self._indices(made, epoch)
        if not isinstance(made, Sequence):
            raise DataError(
                f"{self._key} gives a value {kind_of(made)}; it must be a list of lists of numbers of samples"
            )
        batches = tuple(self._indices(one, epoch) for one in made)
        for one in batches:
            if not 1 <= len(one) <= self._most:
                raise DataError(
                    f"{self._key} gives a batch of {len(one)} samples in epoch {epoch}; it must have 1 to {self._most} "
                    "(data.batch_size)"
                )
        return batches

    def _indices(self, made: Any, epoch: int) -> Tensor:
        try:
            indices = torch.as_tensor(made if isinstance(made, Tensor | np.ndarray) else list(made))
        except (TypeError, ValueError, RuntimeError) as error:
            raise DataError(f"{self._key} gives a value {kind_of(made)}; it must be numbers of samples") from error
        if indices.dim() != 1 or (len(indices) and indices.dtype not in _WHOLE):
            raise DataError(f"{self._key} gives {layout_of(indices)}; it must be numbers of samples")
        indices = indices.long().cpu()
        outside = indices[(indices < 0) | (indices >= self._samples)]
        if len(outside):
            raise DataError(
                f"{self._key} names sample {int(outside[0])} in epoch {epoch}; data.train has samples 0 to {self._samples - 1}"
            )
        return indices


def load_order(
    sampler: str | None, weights: str | None, batch_sampler: str | None, dataset: Any, batch_size: int, seed: int
) -> SampleOrder | None:
    """Return the order that one of the three keys of `[data]` names; None where none does."""
    if sampler is not None:
        return by_function("data.sampler", sampler, dataset, seed)
    if weights is not None:
        return by_weights("data.sample_weights", weights, dataset, seed)
    if batch_sampler is not None:
        return by_function("data.batch_sampler", batch_sampler, dataset, seed, batch_size)
    return None


def by_function(key: str, name: str, dataset: Any, seed: int, most: int | None = None) -> SampleOrder:
    """Return the order of a function `module:function` of data set, seed and epoch; with `most`, of the batch size too."""
    function = load_factory(name, key=key, error=DataError)
    more = () if most is None else (most,)
    return SampleOrder(key, name, lambda epoch: function(dataset, seed, epoch, *more), len(dataset), seed, most)


def by_weights(key: str, name: str, dataset: Any, seed: int) -> SampleOrder:
    """Return the order of torch's `WeightedRandomSampler`, by weights that a function of the data set gives.

    An epoch has as many samples as the data set, drawn with replacement.
    """
    function, count = load_factory(name, key=key, error=DataError), len(dataset)
    weights: list[Tensor] = []

    def draw(epoch: int) -> Tensor:
        if not weights:
            weights.append(_weights(function(dataset), count, f"{key}: {name!r}"))
        generator = torch.Generator().manual_seed(derive_seed(seed, "order", epoch))
        return torch.multinomial(weights[0], count, replacement=True, generator=generator)

    return SampleOrder(key, name, draw, count, seed)


def _weights(given: Any, count: int, shown: str) -> Tensor:
    must = f"it must return a weight of 0 or more for each of {count} samples, and not 0 for all"
    try:
        weights = torch.as_tensor(given, dtype=torch.double)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"{shown} gives a value {kind_of(given)}; {must}") from error
    if weights.shape != (count,):
        raise DataError(f"{shown} gives {layout_of(weights)}; {must}")
    wrong = ~weights.isfinite() | (weights < 0)
    if wrong.any():
        sample = int(wrong.nonzero()[0])
        raise DataError(f"{shown} gives {weights[sample].item():g} for sample {sample}; {must}")
    if not weights.any():
        raise DataError(f"{shown} gives 0 for all samples; {must}")
    return weights


def _same(one: Chosen, other: Chosen) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return torch.equal(one, other)
    return len(one) == len(other) and all(map(torch.equal, one, other))
