"""The tensors that one worker has of one step, and their error gradients: what stages read and make, what comes, what goes.

A tensor is kept once, whatever the number of its readers. Its error gradient is the sum of what its readers answer, the last
one first, as autograd adds them.
"""

from collections import defaultdict
from collections.abc import Collection
from itertools import pairwise
from typing import NamedTuple

from torch import Tensor

from shared.execution.pieces import Piece, gathered, joined, rows_within
from shared.model.features import Features, Gradients, Slots, features_of
from shared.placement import Crossing, ModelFacts, Rows, Tile


class _Gradient(NamedTuple):
    """The error gradient that one stage has at one of its inputs."""

    feature: int
    """The block with which the stage begins; L of the loss."""
    at: int
    """The block behind the stage that takes it."""
    piece: Piece


class StepTensors:
    """All of one step. Tensors are known by their places in `ModelFacts.values`."""

    def __init__(self, model: ModelFacts) -> None:
        self._model = model
        self._values: dict[int, list[Piece]] = defaultdict(list)
        self._gradients: dict[int, list[_Gradient]] = defaultdict(list)

    def add_feature(self, feature: int, rows: Rows, tensors: Slots) -> None:
        """Rows of a feature are here: inputs, or what has come of it."""
        for value, tensor in zip(self._model.features[feature], tensors, strict=True):
            if tensor is not None:
                self._values[value].append(Piece(rows, tensor))

    def add_outputs(self, stage: Tile, rows: Rows, tensors: Slots) -> None:
        """A stage has returned its feature; of this, it has made some tensors."""
        for value, tensor in zip(self._model.features[stage.stop], tensors, strict=True):
            if tensor is not None and self._model.values[value].feature > stage.first:
                self._values[value].append(Piece(rows, tensor))

    def add_gradient(self, feature: int, at: int, slot: int, piece: Piece) -> None:
        """The error gradient that a stage has at a slot of its inputs is here.

        feature: the block with which the stage begins. at: the block behind the stage that takes it, here or elsewhere.
        """
        self._gradients[self._model.features[feature][slot]].append(_Gradient(feature, at, piece))

    def inputs(self, stage: Tile, rows: Rows) -> Slots:
        """Return what a stage reads, slot by slot; None for what it does not."""
        return self._feature(stage.first, rows, self._model.read_slots(stage.first, stage.stop))

    def outputs(self, rows: Rows) -> Features:
        """Return the output of the model."""
        return features_of(self._feature(len(self._model.blocks), rows, range(len(self._model.features[-1]))))

    def at_outputs(self, stage: Tile, rows: Rows) -> Gradients:
        """Return the error gradients that come back to a stage at its outputs; see `ModelFacts.answered_slots`."""
        answered = self._model.answered_slots(stage.first, stage.stop)
        found: list[Tensor | None] = []
        for slot, value in enumerate(self._model.features[stage.stop]):
            taken = [each for each in self._gradients[value] if each.at == stage.stop] if slot in answered else []
            found.append(_summed(taken, rows) if taken else None)
        return tuple(found)

    def sent_feature(self, crossing: Crossing, rows: Rows) -> Slots:
        """Return what crosses of a feature, slot by slot."""
        return self._feature(crossing.index, rows, crossing.slots)

    def sent_gradient(self, crossing: Crossing, rows: Rows) -> Gradients:
        """Return the error gradients that cross: those of the stage that begins with this block."""
        found: list[Tensor | None] = []
        for slot, value in enumerate(self._model.features[crossing.index]):
            own = [
                each.piece
                for each in self._gradients[value]
                if (each.feature, each.at) == (crossing.index, crossing.at)
            ]
            found.append(gathered(own, rows) if slot in crossing.slots and own else None)
        return tuple(found)

    def forget(self, values: Collection[int], gradients: Collection[int]) -> None:
        """Forget these tensors, and these error gradients, as far as they are here."""
        for value in values:
            self._values.pop(value, None)
        for value in gradients:
            self._gradients.pop(value, None)

    def _feature(self, feature: int, rows: Rows, slots: Collection[int]) -> Slots:
        values = self._model.features[feature]
        found: list[Tensor | None] = []
        for slot, value in enumerate(values):
            found.append(gathered(self._values[value], rows) if slot in slots else None)
        return tuple(found)


def _summed(answers: list[_Gradient], rows: Rows) -> Tensor | None:
    """Add the answers on these rows, those of later stages first."""
    if len(answers) == 1 and answers[0].piece.rows == rows:
        return answers[0].piece.tensor
    ranked = [each.piece for each in sorted(answers, key=lambda each: -each.feature)]
    if all(piece.rows == rows for piece in ranked):
        return _added(ranked)
    ends = {rows.begin, rows.end}.union(*({piece.rows.begin, piece.rows.end} for piece in ranked))
    parts = []
    for begin, end in pairwise(sorted(each for each in ends if rows.begin <= each <= rows.end)):
        part = Rows(begin, end)
        there = [rows_within(piece, part) for piece in ranked if piece.rows.overlap(part) is not None]
        parts.append(Piece(part, _added(there)))
    return joined(parts)


def _added(pieces: list[Piece]) -> Tensor | None:
    total: Tensor | None = None
    for piece in pieces:
        if piece.tensor is not None:
            total = piece.tensor if total is None else total + piece.tensor.to(total.device)
    return total
