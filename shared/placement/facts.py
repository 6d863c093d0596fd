"""Facts of a model, and permissions of its owners, that a placement has to know. Numbers and names only."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, cached_property


@dataclass(frozen=True, slots=True)
class BlockFacts:
    """One block, as far as placing it is concerned."""

    name: str
    trainable: bool = True
    has_buffers: bool = False
    """True if training changes something in it besides its weights, as the statistics of batch-norm."""
    min_samples: int = 1
    """The fewest samples that a part of it can compute on: 2 with batch-norm."""
    slices: int = 1
    """Number of slices in which a group of devices exchanges it."""
    steady: bool = False
    """True if it makes the same of a sample in every step: nothing in it learns, draws random numbers or keeps statistics."""

    @property
    def changes(self) -> bool:
        """Tell whether a step changes the block, so that the workers that share it have to be told."""
        return self.trainable or self.has_buffers


@dataclass(frozen=True, slots=True)
class ValueFacts:
    """One tensor that blocks hand on."""

    feature: int
    """The first feature that it is part of: 0 where it is an input, b + 1 where block b makes it."""
    readers: tuple[int, ...]
    """The blocks that read it, in order, each as often as it uses it; L stands for the loss."""
    returns: bool = True
    """True if its error gradient is of use: it is of floats, and a parameter that had a part in it learns."""
    raw: bool = False
    """True if inputs alone have made it, so that it counts as raw samples wherever it is."""
    public: bool = False
    """True if it follows from public inputs alone, so that it never counts as raw samples."""
    inputs: tuple[str, ...] = ()
    """Names of the inputs that it is made of, where these have names."""
    unsent_type: str = ""
    """The type of its numbers where these cannot be sent, as complex ones."""


@dataclass(frozen=True)
class ModelFacts:
    """A model as a chain of blocks."""

    blocks: tuple[BlockFacts, ...]
    why_raw: tuple[str, ...] = ()
    """In words, for features 1 and on that count as raw samples too, why they do: these can be read off them."""
    together: tuple[tuple[int, ...], ...] = ()
    """Groups of blocks that use a weight together, in order: each stays with one worker, which adds up its gradients."""
    values: tuple[ValueFacts, ...] = ()
    """The tensors that blocks hand on. Left out, each feature is one, which the next block alone reads."""
    features: tuple[tuple[int, ...], ...] = ()
    """The values of each feature, slot by slot, as places in `values`."""
    clipped_together: bool = False
    """True if the gradients of all blocks are clipped by one norm, so that their owners have to exchange theirs."""
    scaled: bool = False
    """True if the loss is scaled: one worker tells the others the scale, and any overflow skips the update everywhere."""
    precisions: tuple[tuple[str, str], ...] = ()
    """Workers that compute in a precision of their own, each with its name; empty where all have one. Others have fp32."""
    merged: bool = False
    """True if a group of devices trains the model: owners give their gradients to the group, which updates and clips."""
    label_tensors: int = 1
    """Number of tensors that the labels of a batch are."""
    counts_labels: bool = False
    """True if labels cross with the counts of those by which the loss of an update is divided."""
    samples_ahead: int = 0
    """Steps whose samples and labels may leave before K lets them begin."""
    recalls: bool = False
    """True if the feature and the labels of a sample are kept in the first step that has it, so that where they cross, its
    number alone crosses later."""
    sends_changes: bool = False
    """True if the feature of a sample crosses in the first step that has it, and what has changed of it later."""

    def __post_init__(self) -> None:
        if not self.values:
            count = len(self.blocks)
            first = next((index for index, block in enumerate(self.blocks) if block.trainable), count)
            values = tuple(ValueFacts(index, (index,), returns=index > first) for index in range(count + 1))
            object.__setattr__(self, "values", values)
            object.__setattr__(self, "features", tuple((index,) for index in range(count + 1)))

    @cached_property
    def steady_blocks(self) -> int:
        """Number of leading blocks that make the same of a sample in every step; the last block never counts."""
        return next((index for index, block in enumerate(self.blocks[:-1]) if not block.steady), len(self.blocks) - 1)

    def used_with(self, blocks: Iterable[int]) -> frozenset[int]:
        """Return these blocks, and those that use a weight together with any of them."""
        given = frozenset(blocks)
        return given.union(*(group for group in self.together if not given.isdisjoint(group)))

    @property
    def updated_together(self) -> bool:
        """Tell whether the update of any block waits for the gradients of all."""
        return self.clipped_together or self.scaled

    @property
    def raw_features(self) -> int:
        """Number of leading features that count as raw samples: the input, and those off which it can be read."""
        return 1 + len(self.why_raw)

    def value(self, feature: int, slot: int) -> ValueFacts:
        """Return the tensor in one slot of a feature."""
        return self.values[self.features[feature][slot]]

    def is_raw(self, value: int) -> bool:
        """Tell whether a tensor counts as raw samples."""
        facts = self.values[value]
        return not facts.public and (facts.raw or facts.feature < self.raw_features)

    def computes_on_raw(self, block: int) -> bool:
        """Tell whether a block reads raw samples, or what counts as such."""
        return block < self.raw_features or block in self._read_raw

    @cached_property
    def _read_raw(self) -> frozenset[int]:
        raw = (value for index, value in enumerate(self.values) if self.is_raw(index))
        return frozenset(reader for value in raw for reader in value.readers)

    def read_slots(self, first: int, stop: int) -> tuple[int, ...]:
        """The slots of feature `first` that blocks [first, stop) read, and the loss, where these are the last."""
        return self._slots(first, stop)[0]

    def answered_slots(self, first: int, stop: int) -> tuple[int, ...]:
        """The slots of feature `stop` at which error gradients come back to blocks [first, stop).

        These are the tensors that they have made, and those that they use several times and others use later: autograd adds
        each use by itself to the sum of the later ones.
        """
        return self._slots(first, stop)[1]

    def wants_input_gradient(self, first: int, stop: int) -> bool:
        """Tell whether error gradients at what blocks [first, stop) read are of use."""
        return any(self.value(first, slot).returns for slot in self.read_slots(first, stop))

    @cached_property
    def _slots(self) -> Callable[[int, int], tuple[tuple[int, ...], tuple[int, ...]]]:
        return cache(self._slots_of)

    def _slots_of(self, first: int, stop: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the slots that a run of blocks reads, and those that are answered."""
        end = stop + (stop == len(self.blocks))
        read = tuple(
            slot
            for slot, value in enumerate(self.features[first])
            if any(first <= reader < end for reader in self.values[value].readers)
        )
        answered = tuple(
            slot
            for slot, value in enumerate(self.features[stop])
            if self.values[value].returns and (first < self.values[value].feature or self._adds(value, first, stop))
        )
        return read, answered

    def _adds(self, value: int, first: int, stop: int) -> bool:
        readers = self.values[value].readers
        return readers[-1] >= stop and sum(first <= reader < stop for reader in readers) > 1


def unnamed_blocks(count: int) -> ModelFacts:
    """Return the facts of blocks of which nothing is known but their count."""
    return ModelFacts(tuple(BlockFacts(str(block)) for block in range(count)))


@dataclass(frozen=True, slots=True)
class Permissions:
    """The data that the configuration lets leave its source, by the worker that may have it."""

    inputs_to: frozenset[str] = frozenset()
    """Workers that may have raw samples that are not their own."""
    labels_to: frozenset[str] | None = None
    """Workers that may have labels that are not their own; None permits those that compute the loss."""
    gradients_to: frozenset[str] = frozenset()
    """Workers that may have gradients and new weights of blocks although these tell of samples or labels of others."""
