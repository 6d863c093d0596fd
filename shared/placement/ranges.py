"""Ranges of blocks as people write them: `2:6` is blocks 2 to 5, and `6:` is block 6 and all after it."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

ALLOWED = "a range of blocks as 2:6, or 6: for all from block 6 on"
_RANGE = re.compile(r"([0-9]{1,6}):([0-9]{1,6})?", re.ASCII)


@dataclass(frozen=True, slots=True)
class BlockRange:
    """Blocks [first, stop); without a stop, all from `first` on."""

    first: int
    stop: int | None

    def bounds(self, blocks: int) -> tuple[int, int]:
        """First and stop in a model of so many blocks, which need not have them."""
        return self.first, blocks if self.stop is None else self.stop

    def __str__(self) -> str:
        return f"{self.first}:{'' if self.stop is None else self.stop}"


def ranges_of(blocks: Iterable[int]) -> list[BlockRange]:
    """The fewest ranges that hold these blocks and no other, in order."""
    found: list[BlockRange] = []
    for block in sorted(blocks):
        begins = found.pop().first if found and found[-1].stop == block else block
        found.append(BlockRange(begins, block + 1))
    return found


def parse_range(text: str) -> BlockRange:
    """The range that a text names. Raises ValueError for anything else, and for a range that holds no block."""
    match = _RANGE.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not {ALLOWED}")
    first, stop = int(match[1]), None if match[2] is None else int(match[2])
    if stop is not None and stop <= first:
        raise ValueError(f"{text!r} holds no block; its end must be above its beginning")
    return BlockRange(first, stop)
