"""Rows of a feature or of an error gradient, as a worker comes to have them: some computed here, some from others."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from shared.model.features import Features, Gradients
from shared.placement import Rows


class Piece(NamedTuple):
    """Some rows, slot by slot: all tensors have so many samples."""

    rows: Rows
    tensors: Gradients


def gathered(pieces: Sequence[Piece], rows: Rows) -> Gradients:
    """Join these rows of pieces that hold each once, in the order of the samples.

    A single piece is not copied. If some rows of a slot have an error gradient and others have none, theirs is zero.
    """
    if len(pieces) == 1 and pieces[0].rows == rows:
        return pieces[0].tensors
    parts = [_cut(piece, both) for piece in _in_order(pieces) if (both := piece.rows.overlap(rows)) is not None]
    assert sum(part.rows.count for part in parts) == rows.count, "the program brings every row"
    if len(parts) == 1:
        return parts[0].tensors
    return tuple(_joined(slot, parts) for slot in zip(*(part.tensors for part in parts), strict=True))


def rows_of(tensor: Tensor, rows: Rows) -> Tensor:
    """Return some samples of a tensor that begins with sample 0.

    A part is a copy: alignment chooses kernels and kernels choose bits, and a tensor that another worker receives
    begins at the start of its memory.
    """
    return tensor if rows == Rows(0, len(tensor)) else tensor[rows.begin : rows.end].clone()


def features_of(tensors: Gradients) -> Features:
    """Tensors that are all there."""
    return tuple(tensor for tensor in tensors if tensor is not None)


def _in_order(pieces: Sequence[Piece]) -> list[Piece]:
    return sorted(pieces, key=lambda piece: piece.rows.begin)


def _cut(piece: Piece, rows: Rows) -> Piece:
    here = Rows(rows.begin - piece.rows.begin, rows.end - piece.rows.begin)
    return Piece(rows, tuple(None if tensor is None else rows_of(tensor, here) for tensor in piece.tensors))


def _joined(slot: tuple[Tensor | None, ...], parts: Sequence[Piece]) -> Tensor | None:
    known = next((tensor for tensor in slot if tensor is not None), None)
    if known is None:
        return None
    filled = [
        known.new_zeros((part.rows.count, *known.shape[1:])) if tensor is None else tensor
        for tensor, part in zip(slot, parts, strict=True)
    ]
    return torch.cat(filled)
