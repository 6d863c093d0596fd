"""Two workers in virtual time: the four phases of a step, each of which serves the batches one by one (paper 000, 4.1).

A batch's times follow from those of the batch before it and of the one K + 1 before it, so no queue of events is needed. Tests
hold it equal to the placement simulator, of whose time it takes a small part.
"""

from edge_agent.planning.cost import loads_of
from edge_agent.planning.layout import Layout
from edge_agent.planning.placement_simulator import PlacementRun
from edge_agent.planning.profile import Profile
from edge_agent.planning.traces import LinkTrace
from shared.errors import PlanError


def simulate_phases(profile: Profile, layout: Layout, link: LinkTrace, begin: float, until: float) -> PlacementRun:
    """Run a stacked layout of two workers from an empty pipeline at `begin` until it is empty again.

    until: the time from which no more batches begin. One begins at least. PlanError for a layout that was not measured, and for
    a step without work.
    """
    loads = loads_of(profile, [layout])
    if not loads.measured()[0]:
        raise PlanError(f"the profile has nothing measured for {layout}; choose another deployment")
    computing, cloud_seconds = (float(loads.work[place][0]) for place in (0, 1))
    if not computing + cloud_seconds > 0.0:
        raise PlanError(f"the profile has 0 s of work in a step at {layout}, and such a run would never end")
    edge_seconds = computing + float(loads.paths.waited[0])
    busy_seconds = computing + (float(loads.host[0][0]) if 0 in loads.host else 0.0)
    uplink_bits, downlink_bits = float(loads.bits[0, 1][0]), float(loads.bits[1, 0][0])
    one_way_seconds = sum(float(halves[0]) for halves in loads.paths.halves.values()) * link.round_trip_seconds / 4
    window = layout.staleness + 1
    settled, done = list[float](), list[float]()
    start = edge_free = uplink_free = cloud_free = downlink_free = begin
    while not settled or start < until:
        ready, edge_free = start + edge_seconds, start + busy_seconds
        uplink_free = link.uplink.finish(max(ready, uplink_free), uplink_bits)
        arrived = uplink_free + one_way_seconds
        cloud_free = max(arrived, cloud_free) + cloud_seconds
        downlink_free = link.downlink.finish(max(cloud_free, downlink_free), downlink_bits)
        settled.append(downlink_free + one_way_seconds)
        done.append(max(edge_free, settled[-1]))
        start = max(edge_free, settled[-window]) if len(settled) >= window else edge_free
    return PlacementRun(tuple(settled), tuple(done), layout.staleness)
