"""Links that share a segment, told by what two carry at once."""

import asyncio

import pytest

from edge_agent.profiling.workers.measured_links import shared_segments
from edge_agent.profiling.workers.measured_parts import LinkSection

HOPS = (("edge", "near"), ("edge", "far"), ("near", "far"))


class Network:
    """Links that divide the rate of a segment between those who use it."""

    def __init__(self, segments, rates=(8e6, 8e6, 8e6)):
        self.alone = {
            hop: LinkSection(uplink=rate, downlink=2 * rate, round_trip_seconds=0.01)
            for hop, rate in zip(HOPS, rates, strict=True)
        }
        self._segments, self._busy = segments, set()

    async def measure(self, near, far):
        """One measurement; the longer the slower the link is."""
        hop, most = (near, far), 1
        self._busy.add(hop)
        for _ in range(int(64e6 / self.alone[hop].uplink)):
            await asyncio.sleep(0)
            sharing = [
                other for segment in self._segments if hop in segment for other in segment if other in self._busy
            ]
            most = max(most, len({*sharing, hop}))
        self._busy.discard(hop)
        link = self.alone[hop]
        return LinkSection(uplink=link.uplink / most, downlink=link.downlink / most, round_trip_seconds=0.01)


@pytest.mark.parametrize(
    ("segments", "found"),
    [
        ([], []),
        ([(HOPS[0], HOPS[1])], [[0, 1]]),
        ([(HOPS[1], HOPS[2])], [[1, 2]]),
        ([(HOPS[0], HOPS[1]), (HOPS[1], HOPS[2])], [[0, 1], [1, 2]]),
        ([HOPS], [[0, 1, 2]]),
    ],
)
@pytest.mark.parametrize("rates", [(8e6, 8e6, 8e6), (16e6, 1e6, 64e6)])
async def test_links_that_take_from_each_other_share_a_segment(segments, found, rates):
    network = Network(segments, rates)
    assert await shared_segments(network.measure, network.alone) == found


@pytest.mark.parametrize(("part", "found"), [(0.69, [[0, 1], [0, 2]]), (0.71, [])])
async def test_one_direction_of_one_link_is_enough(part, found):
    alone = Network([]).alone

    async def measure(near, far):
        await asyncio.sleep(0)
        link = alone[near, far]
        slower = part if (near, far) == HOPS[0] else 1.0
        return link.model_copy(update={"downlink": slower * link.downlink})

    assert await shared_segments(measure, alone) == found


async def test_a_link_that_cannot_be_measured_ends_it():
    async def measure(near, far):
        raise ConnectionError(f"{near} {far}")

    with pytest.raises(ConnectionError, match="edge "):
        await shared_segments(measure, Network([]).alone)
