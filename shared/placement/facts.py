"""Facts of a model, and permissions of its owners, that a placement has to know. Numbers and names only."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property


@dataclass(frozen=True, slots=True)
class BlockFacts:
    """One block, as far as placing it is concerned."""

    name: str
    trainable: bool = True
    has_buffers: bool = False
    """True if training changes something in it besides its weights, as the statistics of batch-norm."""
    min_samples: int = 1
    """The fewest samples that a part of it can compute on: 2 with batch-norm."""

    @property
    def changes(self) -> bool:
        """Tell whether a step changes the block, so that the workers that share it have to be told."""
        return self.trainable or self.has_buffers


@dataclass(frozen=True)
class ModelFacts:
    """A model as a chain of blocks."""

    blocks: tuple[BlockFacts, ...]
    why_raw: tuple[str, ...] = ()
    """In words, for features 1 and on that count as raw samples too, why they do: these can be read off them."""
    together: tuple[tuple[int, ...], ...] = ()
    """Groups of blocks that use a weight together, in order: each stays with one worker, which adds up its gradients."""
    integer_features: frozenset[int] = frozenset()
    """Features without a tensor of floats: no error gradient is defined there."""
    unsent_types: Mapping[int, str] = field(default_factory=dict)
    """For features with numbers that cannot be sent, as complex ones, of which type these are."""

    @property
    def raw_features(self) -> int:
        """Number of leading features that count as raw samples: the input, and those off which it can be read."""
        return 1 + len(self.why_raw)

    def learns_below(self, feature: int) -> bool:
        """Tell whether any block before `feature` learns by an error gradient there."""
        return feature not in self.integer_features and feature > self._first_trainable

    @cached_property
    def _first_trainable(self) -> int:
        """The first block that learns; where none does, the count of blocks."""
        return next((index for index, block in enumerate(self.blocks) if block.trainable), len(self.blocks))


@dataclass(frozen=True, slots=True)
class Permissions:
    """The data that the configuration lets leave its source, by the worker that may have it."""

    inputs_to: frozenset[str] = frozenset()
    """Workers that may have raw samples that are not their own."""
    labels_to: frozenset[str] | None = None
    """Workers that may have labels that are not their own; None permits those that compute the loss."""
    gradients_to: frozenset[str] = frozenset()
    """Workers that may have gradients and new weights of blocks although these tell of samples or labels of others."""
