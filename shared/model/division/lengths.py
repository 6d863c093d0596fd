"""Lengths: the size behind the batch that may be smaller from batch to batch, and the sizes that follow from it.

Each size of a tensor between blocks is found by running the blocks on batches of several lengths: it stays, or follows the
length by a fixed step, as that of a sequence with one token more in front does.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from shared.errors import ModelError
from shared.model.features import FeatureSpecs
from shared.model.spec import TensorSpec


class Size(NamedTuple):
    """A size of a tensor: `step` times the length, and `rest`."""

    step: int
    rest: int

    def at(self, length: int) -> int:
        """Return the size for a length."""
        return self.step * length + self.rest

    def length(self, size: int) -> int | None:
        """Return the length that a size is of; None where there is none."""
        length, left = divmod(size - self.rest, self.step)
        return None if left else length


@dataclass(frozen=True)
class Lengths:
    """The lengths that batches may have."""

    longest: int
    """Length of the example: all memory is counted for it."""
    sizes: tuple[tuple[tuple[Size, ...], ...], ...]
    """By feature and slot, the sizes behind the batch."""

    def varies(self, feature: int, slot: int) -> bool:
        """Tell whether a tensor has any size that follows the length."""
        return any(size.step for size in self.sizes[feature][slot])

    def of(self, feature: int, slot: int, shape: Sequence[int]) -> int | None:
        """Return the length that a tensor of this shape has; None where no size follows it, or none of 1 to `longest` fits."""
        for size, there in zip(self.sizes[feature][slot], shape[1:], strict=False):
            if size.step:
                length = size.length(there)
                return length if length is not None and 1 <= length <= self.longest else None
        return None

    def outputs_beside(self, labels: TensorSpec, outputs: FeatureSpecs) -> FeatureSpecs:
        """Return the outputs of the model for the length that labels of this kind have, or for the longest."""
        last = len(self.sizes) - 1
        for slot, sizes in enumerate(self.sizes[last]):
            for there in labels.shape[1:]:
                shape = (labels.shape[0], *(there if size.step else size.rest for size in sizes))
                if (length := self.of(last, slot, shape)) is not None:
                    return tuple(self.spec(last, each, spec, length) for each, spec in enumerate(outputs))
        return outputs

    def spec(self, feature: int, slot: int, spec: TensorSpec, length: int) -> TensorSpec:
        """Return the kind of a tensor for a length. spec: for the longest, with any number of samples."""
        sizes = (size.at(length) for size in self.sizes[feature][slot])
        return TensorSpec((*spec.shape[:1], *sizes), spec.dtype)


def lengths_of(name: str, found: Mapping[int, Sequence[FeatureSpecs]]) -> Lengths:
    """Return the sizes that follow from the length. found: the features of some batches by length.
    name: of the model. Raises ModelError where a size follows otherwise.
    """
    if len(found) < 2:
        raise ModelError(
            f"data.longest is set, and the inputs of {name} have no length: a second dimension of 2 or more"
        )
    longest, shorter = max(found), sorted(found)[-2]
    sizes = []
    for index, specs in enumerate(found[longest]):
        of_slots = []
        for slot, spec in enumerate(specs):
            others = [features[index][slot].shape for features in found.values()]
            if any(len(shape) != len(spec.shape) for shape in others):
                raise ModelError(_otherwise(name, index))
            pairs = zip(spec.shape[1:], found[shorter][index][slot].shape[1:], strict=True)
            steps = [((there - less) // (longest - shorter), there) for there, less in pairs]
            of_slot = tuple(Size(step, there - step * longest) for step, there in steps)
            for length, features in found.items():
                if features[index][slot].shape[1:] != tuple(size.at(length) for size in of_slot):
                    raise ModelError(_otherwise(name, index))
            of_slots.append(of_slot)
        sizes.append(tuple(of_slots))
    return Lengths(longest, tuple(sizes))


def _otherwise(name: str, index: int) -> str:
    return (
        f"data.longest is set, and what enters block {index} of {name} has sizes that do not follow the length of a batch by a "
        "fixed step; pad all batches to one length, or declare blocks() between which sizes do"
    )
