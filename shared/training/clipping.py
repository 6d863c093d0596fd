"""The clipping of all gradients of a model by one norm, whoever owns its blocks, as `torch.nn.utils.clip_grad_norm_` does it.

Owners tell the norm of each parameter's gradient; one worker computes the coefficient, and each owner scales its own gradients.
Where the loss is scaled, the same exchange tells of overflows, by which nobody updates.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce

import torch
from torch import Tensor

from shared.errors import ProtocolError
from shared.model.chain import Block, Chain
from shared.training.finite import are_finite

NO_GRADIENT = -1.0
"""Stands for the norm of a parameter that no gradient has reached."""
OVERFLOW = -2.0
"""Stands for the norm of a gradient that is not finite, where the loss is scaled."""
SKIP = -1.0
"""Stands for the coefficient of an update that is skipped, where the loss is scaled."""
_EPSILON = 1e-6
"""Added to the norm, as torch does."""
BlockNorms = dict[int, Tensor]
"""By block, the norms of the gradients of its parameters that learn, in their order: float64, `NO_GRADIENT` or `OVERFLOW`."""


def count_of(block: Block) -> int:
    """Count the parameters of a block that learn."""
    return sum(parameter.requires_grad for parameter in block.named_parameters().values())


class Clipping:
    """The clipping of the blocks of one chain."""

    def __init__(self, chain: Chain, clip_norm: float | None, *, is_scaled: bool = False) -> None:
        """clip_norm: None where nothing is clipped together, and only overflows are told.

        is_scaled: whether an overflow skips the update.
        """
        self._clip_norm = clip_norm
        self._is_scaled = is_scaled
        order = {id(parameter): place for place, parameter in enumerate(chain.module.parameters())}
        learning = [
            {name: value for name, value in block.named_parameters().items() if value.requires_grad}
            for block in chain.blocks
        ]
        self._names = [tuple(of_block) for of_block in learning]
        self._places = [[(order[id(value)], value.dtype) for value in of_block.values()] for of_block in learning]
        dtypes = (dtype for of_block in self._places for _, dtype in of_block)
        self._dtype = reduce(torch.promote_types, dtypes, torch.float32)

    def norms(self, block: int, gradients: Mapping[str, Tensor]) -> Tensor:
        """Compute the norms of a block's gradients, by the names of its parameters; an infinite one where it is no number."""
        names = self._names[block]
        reached = {name: gradients[name] for name in names if name in gradients}
        found = dict(zip(reached, self._norms(list(reached.values())), strict=True))
        norms = torch.tensor([found.get(name, NO_GRADIENT) for name in names], dtype=torch.float64)
        return norms.nan_to_num(nan=torch.inf, posinf=torch.inf)

    def _norms(self, gradients: Sequence[Tensor]) -> list[float]:
        """Compute the norms of gradients, with one wait for the device."""
        if not gradients:
            return []
        if self._clip_norm is None:  # then nobody is told more than whether it is finite
            return [0.0 if is_finite else OVERFLOW for is_finite in are_finite(gradients)]
        norms = torch.stack([torch.linalg.vector_norm(one).to(torch.float64) for one in gradients]).tolist()
        return [self._told(norm, gradient) for norm, gradient in zip(norms, gradients, strict=True)]

    def _told(self, norm: float, gradient: Tensor) -> float:
        overflowed = self._is_scaled and not math.isfinite(norm) and not all(are_finite([gradient]))
        return OVERFLOW if overflowed else norm

    def parted(self, blocks: Iterable[int], joined: Tensor) -> BlockNorms:
        """Part the joined norms of these blocks."""
        blocks = tuple(blocks)
        parts = torch.split(joined, [len(self._names[block]) for block in blocks])
        return dict(zip(blocks, parts, strict=True))

    def coefficient(self, norms: Mapping[int, Tensor]) -> Tensor:
        """Compute the number, at most 1, by which all gradients are scaled, or `SKIP`. norms: of all blocks that learn."""
        if any(bool((of_block == OVERFLOW).any()) for of_block in norms.values()):
            return torch.full((1,), SKIP, dtype=torch.float64)
        found = sorted(
            (place, norm, dtype)
            for block, of_block in norms.items()
            for (place, dtype), norm in zip(self._places[block], of_block.tolist(), strict=True)
            if norm != NO_GRADIENT
        )
        if not found or self._clip_norm is None:
            return torch.ones(1, dtype=torch.float64)
        # The same operations in the same types, for the same bits.
        total = torch.linalg.vector_norm(torch.stack([torch.tensor(norm, dtype=dtype) for _, norm, dtype in found]))
        clamped = torch.clamp(self._clip_norm / (total + _EPSILON), max=1.0)
        return clamped.to(torch.float64).reshape(1)

    def scale(self, gradients: Iterable[Tensor], coefficient: Tensor) -> None:
        """Scale gradients in place."""
        if self._clip_norm is None:
            return
        factor = coefficient[0].to(self._dtype)
        for gradient in gradients:
            gradient.mul_(factor.to(gradient.device))


def check_norms(norms: Tensor, *, is_scaled: bool) -> None:
    """Refuse what is no norms of gradients. Raises ProtocolError."""
    overflows = (norms == OVERFLOW) & is_scaled
    if not bool(((norms >= 0.0) | (norms == NO_GRADIENT) | overflows).all()):
        raise ProtocolError(
            f"norms of gradients came of which one is no norm: each is 0 or more, or {NO_GRADIENT:g} where there is no gradient"
        )


def check_coefficient(coefficient: Tensor, *, is_scaled: bool) -> None:
    """Refuse what is no coefficient of clipping. Raises ProtocolError."""
    number = float(coefficient)
    if not (0.0 <= number <= 1.0 or (is_scaled and number == SKIP)):
        raise ProtocolError(f"gradients are to be scaled by {number:g}; a coefficient is from 0 to 1")
