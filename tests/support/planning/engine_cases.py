"""Profiles, links and runs for the tests of the engine."""

from edge_agent.planning import (
    Engine,
    LinkTrace,
    Observation,
    ProfiledBlock,
    SearchSpace,
    Trace,
    first_layout,
    simulate,
)
from edge_agent.planning.rates import Rates
from tests.support.planning.cases import MBIT, asked, small_profile

SPACE = SearchSpace((2, 4, 8, 32))
LIGHT_BLOCKS = tuple(ProfiledBlock(f"b{i}", 1e4) for i in range(4))
LIGHT = small_profile(blocks=LIGHT_BLOCKS)
REPLAYED = small_profile(
    blocks=LIGHT_BLOCKS,
    edge_seconds=(None, 0.5, 1.0, 1.5, 2.5),
    serial_edge_seconds=(None, 0.3, 0.6, 0.9, 2.5),
    cloud_seconds=(None, 0.04, 0.03, 0.02, 0.0),
    feature_bytes=(None, 4e5, 2e5, 1e5, None),
    gradient_bytes=(None, 4e5, 2e5, 1e5, None),
)
"""Its replay takes longer than link and trainer together, where the link is fast."""
QUICK = small_profile(
    blocks=tuple(ProfiledBlock(f"b{i}", 1e5) for i in range(4)),
    edge_seconds=(None, 0.05, 0.1, 0.2, 0.6),
    cloud_seconds=(None, 0.04, 0.03, 0.02, 0.0),
    feature_bytes=(None, 4e5, 2e5, 1e5, None),
    gradient_bytes=(None, 4e5, 2e5, 1e5, None),
    encode=None,
)
"""A profile whose best cut hangs on the link, and in which a move takes little."""
HEAVY = small_profile(blocks=tuple(ProfiledBlock(f"b{i}", 1e7) for i in range(4)))


def symmetric(*pieces):
    """A link of (seconds, Mbit/s) pieces, both directions alike."""
    trace = Trace.of_durations([seconds for seconds, _ in pieces], [rate * MBIT for _, rate in pieces])
    return LinkTrace(trace, trace)


def best_for(profile, mbit):
    return first_layout(*asked(profile, Rates(mbit * MBIT, mbit * MBIT), SPACE))


def both(profile, link, start, seconds):
    """Steps with the start kept, and the run of the engine from there."""
    kept = simulate(profile, [link], start, seconds)
    return kept.steps, simulate(profile, [link], start, seconds, Engine(profile, SPACE, start, total_steps=kept.steps))


def between(second, step, rates, work=None):
    """Describe the last second of two workers and of the link between them."""
    return Observation(
        float(second),
        step,
        {("edge", "trainer"): rates.uplink, ("trainer", "edge"): rates.downlink},
        {("edge", "trainer"): rates.round_trip_seconds},
        work or {},
    )


def watched(engine, seconds, uplink=8 * MBIT, downlink=8 * MBIT, steps_a_second=1.0, begin=0, **compute):
    """Observe once a second; the first decision."""
    work = {"edge": compute.get("edge_seconds"), "trainer": compute.get("cloud_seconds")}
    trips = {("edge", "trainer"): compute.get("round_trip_seconds")}
    for second in range(begin, begin + seconds):
        rates = {("edge", "trainer"): uplink, ("trainer", "edge"): downlink}
        decision = engine.observe(Observation(float(second), int(second * steps_a_second), rates, trips, work))
        if decision is not None:
            return decision
    return None
