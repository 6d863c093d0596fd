"""The tensors that one worker has of one step, and their error gradients: what stages read and make, what comes, what goes.

They are here in pieces, each of some rows: some computed here, some from others. A tensor is kept once, whatever the number of
its readers. Its error gradient is the sum of what its readers answer, the last one first, as autograd adds them.
"""

from collections import defaultdict
from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from shared.model.features import Features, Gradients, Slots, features_of
from shared.placement import Crossing, ModelFacts, Rows, Tile


class Piece(NamedTuple):
    """Some rows; None of an error gradient where there is none."""

    rows: Rows
    tensor: Tensor | None


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

    def feature(self, feature: int, rows: Rows, slots: Collection[int]) -> Slots:
        """Return some slots of a feature; None for the others."""
        values = self._model.features[feature]
        found: list[Tensor | None] = []
        for slot, value in enumerate(values):
            found.append(gathered(self._values[value], rows) if slot in slots else None)
        return tuple(found)

    def inputs(self, stage: Tile, rows: Rows) -> Slots:
        """Return what a stage reads, slot by slot; None for what it does not."""
        return self.feature(stage.first, rows, self._model.read_slots(stage.first, stage.stop))

    def outputs(self, rows: Rows) -> Features:
        """Return the output of the model."""
        return features_of(self.feature(len(self._model.blocks), rows, range(len(self._model.features[-1]))))

    def at_outputs(self, stage: Tile, rows: Rows) -> Gradients:
        """Return the error gradients that come back to a stage at its outputs; see `ModelFacts.answered_slots`."""
        answered = self._model.answered_slots(stage.first, stage.stop)
        found: list[Tensor | None] = []
        for slot, value in enumerate(self._model.features[stage.stop]):
            taken = [each for each in self._gradients[value] if each.at == stage.stop] if slot in answered else []
            found.append(_summed(taken, rows) if taken else None)
        return tuple(found)

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


def gathered(pieces: Sequence[Piece], rows: Rows) -> Tensor | None:
    """Join these rows of pieces that hold each, in the order of the samples; a row that two have is taken from the first.

    A single piece is not copied. If some rows have an error gradient and others have none, theirs is zero.
    """
    if len(pieces) == 1 and pieces[0].rows == rows:
        return pieces[0].tensor
    parts, begin = [], rows.begin
    for piece in sorted(pieces, key=lambda piece: piece.rows.begin):
        if (both := piece.rows.overlap(Rows(begin, rows.end))) is not None:
            parts.append(rows_within(piece, both))
            begin = both.end
    assert sum(part.rows.count for part in parts) == rows.count, "the program brings every row"
    return joined(parts)


def rows_within(piece: Piece, rows: Rows) -> Piece:
    """Cut these rows out of a piece that has them."""
    if piece.rows == rows or piece.tensor is None:
        return Piece(rows, piece.tensor)
    here = Rows(rows.begin - piece.rows.begin, rows.end - piece.rows.begin)
    return Piece(rows, rows_of(piece.tensor, here))


def joined(parts: Sequence[Piece]) -> Tensor | None:
    """Join parts, which are in the order of their samples."""
    if len(parts) == 1:
        return parts[0].tensor
    known = next((part.tensor for part in parts if part.tensor is not None), None)
    if known is None:
        return None
    # What has come is in this machine's memory, and what was computed here may be on a GPU.
    return torch.cat(
        [
            known.new_zeros((part.rows.count, *known.shape[1:]))
            if part.tensor is None
            else part.tensor.to(known.device)
            for part in parts
        ]
    )


def rows_of(tensor: Tensor, rows: Rows) -> Tensor:
    """Return some samples of a tensor that begins with sample 0.

    A part is a copy: alignment chooses kernels and kernels choose bits, and a tensor that another worker receives
    begins at the start of its memory.
    """
    return tensor if rows == Rows(0, len(tensor)) else tensor[rows.begin : rows.end].clone()
