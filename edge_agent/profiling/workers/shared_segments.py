"""Links that share a segment, such as the access line of a device: found by measuring two at once."""

from collections.abc import Awaitable, Callable, Mapping
from itertools import combinations

from edge_agent.profiling.workers.measured_parts import LinkSection
from shared.concurrency.tasks import gathered

Hop = tuple[str, str]
LEAST_PART = 0.7
"""Part of its own rate that a link keeps at least beside one with which it shares nothing. Sharing usually leaves half."""
MEASURED = 2
"""Measurements of each link while the other one is busy, at least: the ways up and down of two begin to differ."""


async def shared_segments(
    measure: Callable[[str, str], Awaitable[LinkSection]], alone: Mapping[Hop, LinkSection]
) -> list[list[int]]:
    """Return the numbers of the links that share a segment, a list a segment. Raises IsthmusError.

    measure: measures the link between two workers. alone: what each link carries while the others are idle.
    """
    hops = list(alone)
    pairs = [
        [one, other]
        for one, other in combinations(range(len(hops)), 2)
        if await _hinder_each_other(measure, {hops[number]: alone[hops[number]] for number in (one, other)})
    ]
    everyone = list(range(len(hops)))
    return [everyone] if len(pairs) > 1 and len(pairs) == len(hops) * (len(hops) - 1) // 2 else pairs


async def _hinder_each_other(
    measure: Callable[[str, str], Awaitable[LinkSection]], alone: Mapping[Hop, LinkSection]
) -> bool:
    """Tell whether one of two links carries clearly less while the other is measured, in either direction."""
    found: dict[Hop, list[LinkSection]] = {hop: [] for hop in alone}

    async def keep_busy(hop: Hop) -> None:
        while any(len(links) < MEASURED for links in found.values()):
            found[hop].append(await measure(*hop))

    await gathered(*map(keep_busy, alone))
    return any(
        min(link.uplink for link in links) < LEAST_PART * alone[hop].uplink
        or min(link.downlink for link in links) < LEAST_PART * alone[hop].downlink
        for hop, links in found.items()
    )
