"""The slices of the blocks of a chain, by their numbers: the same at every member and trainer of a group."""

from collections.abc import Iterator
from functools import cached_property

from shared.model.chain import Chain
from shared.placement import BlockSlice
from shared.training.recipe import Recipe
from shared.training.slices import Slice, cut, learning_bytes, may_be_cut, whole


class Slices:
    """The slices of a chain under a recipe. Each block is cut when it is first asked for."""

    def __init__(self, chain: Chain, recipe: Recipe, *, merged: bool) -> None:
        """merged: True for blocks that a group updates; those of others are whole."""
        self._chain = chain
        self._are_cut = merged and may_be_cut(recipe)
        self._found: dict[int, tuple[Slice, ...]] = {}

    def of(self, block: int) -> tuple[Slice, ...]:
        """Return the slices of a block, in their order."""
        if block not in self._found:
            one = self._chain.blocks[block]
            self._found[block] = cut(one, self._all_bytes) if self._are_cut else (whole(one),)
        return self._found[block]

    @cached_property
    def _all_bytes(self) -> int:
        return sum(map(learning_bytes, self._chain.blocks))

    def __getitem__(self, one: BlockSlice) -> Slice:
        """Return a slice."""
        return self.of(one.block)[one.number]

    def numbered(self, block: int) -> Iterator[BlockSlice]:
        """Name the slices of a block, in their order."""
        return (BlockSlice(block, number) for number in range(len(self.of(block))))
