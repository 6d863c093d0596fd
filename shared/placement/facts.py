"""What a placement has to know of a model and of what its people permit. Numbers and names only."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BlockFacts:
    """One block, as far as placing it is concerned."""

    name: str
    trainable: bool = True
    has_buffers: bool = False
    """Whether training changes something in it besides its weights, as the statistics of batch-norm."""
    min_samples: int = 1
    """The fewest samples that a part of it can compute on: 2 with batch-norm."""

    @property
    def changes(self) -> bool:
        """Whether a step leaves the block other than it was, so that whoever shares it has to be told."""
        return self.trainable or self.has_buffers


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """A model as a chain of blocks."""

    blocks: tuple[BlockFacts, ...]
    raw_features: int = 1
    """How many leading features count as raw samples: the input, and what table lookups alone have made of it."""
    integer_features: frozenset[int] = frozenset()
    """Features without a tensor of floats: no error gradient is defined there."""

    def learns_below(self, feature: int) -> bool:
        """Whether any block before `feature` learns by an error gradient there."""
        return feature not in self.integer_features and any(block.trainable for block in self.blocks[:feature])


@dataclass(frozen=True, slots=True)
class Permissions:
    """What the configuration lets leave its source, by the worker that may have it."""

    inputs_to: frozenset[str] = frozenset()
    """Workers that may have raw samples that are not their own."""
    labels_to: frozenset[str] | None = None
    """Workers that may have labels that are not their own; None permits those that compute the loss."""
