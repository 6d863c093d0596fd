"""The exchange of shared blocks: which gradients and weights of blocks travel together on a link. Pure.

Left out, each block travels by itself, as soon as it can (flow).
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from shared.placement.derived import Crossing
from shared.placement.tiles import Cargo, Exchange, Segment


class Bundle(NamedTuple):
    """The loads of one step that travel together with one of them, each by its place among all that leaves by the link."""

    together: tuple[int, ...]
    """All of the segment, in the order in which they go."""
    after: tuple[int, ...]
    """Loads that have to be made before any of these goes."""


def bundles(exchange: Exchange | None, crossings: Sequence[Crossing]) -> Mapping[int, Bundle]:
    """Return the bundle of each gradient and of each block's weights that leaves by one link; empty for a flow."""
    if exchange is None:
        return {}
    pushed = [place for place, one in enumerate(crossings) if one.cargo is Cargo.WEIGHT_GRADIENT]
    pulled = [place for place, one in enumerate(crossings) if one.cargo is Cargo.WEIGHTS]
    found: dict[int, Bundle] = {}
    for whole, segments, is_push in ((pushed, exchange.push, True), (pulled, exchange.pull, False)):
        for first, stop in segments:
            inside = [place for place in whole if first <= crossings[place].index < stop]
            together = tuple(sorted(inside, key=lambda place: crossings[place].index, reverse=is_push))
            after = tuple(pulled) if exchange.barrier and not is_push else together
            found |= dict.fromkeys(together, Bundle(together, after))
    return found


def wrong_segments(exchange: Exchange, blocks: int) -> str | None:
    """Describe the first error of an exchange of so many blocks; None if each has every block once, in its order."""
    for name, segments, order in (
        ("push", tuple(reversed(exchange.push)), "the last blocks first"),
        ("pull", exchange.pull, "the first blocks first"),
    ):
        if not _is_partition(segments, blocks):
            shown = [list(segment) for segment in (reversed(segments) if name == "push" else segments)]
            return (
                f"exchange.{name} is {str(shown)[:80]}; its segments [first, stop) must have each of the {blocks} blocks once, "
                f"{order}"
            )
    return None


def _is_partition(segments: Sequence[Segment], blocks: int) -> bool:
    at = 0
    for first, stop in segments:
        if first != at or stop <= first:
            return False
        at = stop
    return at == blocks
