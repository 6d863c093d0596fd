"""Rows of a tensor or of an error gradient, as a worker comes to have them: some computed here, some from others."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from shared.placement import Rows


class Piece(NamedTuple):
    """Some rows; None of an error gradient where there is none."""

    rows: Rows
    tensor: Tensor | None


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
