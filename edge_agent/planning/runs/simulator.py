"""A simulated training run of any layout over traces of its links, as the engine decides: its steps, and its changes of layout.

Every change drains, so a run is a sequence of stretches, and each stretch is a run of the placement simulator, or of the four
phases of two workers. The engine is the one of a real run, and it sees only what the links carried so far.
"""

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

import numpy as np

from edge_agent.planning.cost import bits_between, loads_of
from edge_agent.planning.engine import Decision, Engine, Observation
from edge_agent.planning.engine.moves import CHANGE_TRIPS
from edge_agent.planning.layout import Layout
from edge_agent.planning.placement_simulator import PlacementRun, simulate_placement
from edge_agent.planning.profile import Hop, Profile
from edge_agent.planning.profile_operations import layout_tasks, measured_rates
from edge_agent.planning.traces import LinkTrace, in_series
from shared.errors import PlanError

PROBE_SECONDS = 5.0
"""Time for which links are measured before training starts. It counts into no run."""

OBSERVE_SECONDS = 1.0
"""Interval of the link monitor's reports to the engine."""

FIRST_STRETCH_SECONDS = 60.0
"""Part of a stretch that is simulated first, and then twice as much, because most of a long one may never come."""


@dataclass(frozen=True)
class Switch:
    """A change of deployment during a run."""

    seconds: float
    """Time at which training continued with the new deployment, or with the old one after an attempt that was given up."""
    layout: Layout
    """Deployment with which it continued."""
    paused_seconds: float
    """Time without a batch in work: the blocks' move over the link."""


@dataclass(frozen=True)
class Run:
    """The result of a run."""

    seconds: float
    """Duration of the run."""
    steps: float
    """Batches settled by then. The one under way counts in proportion."""
    start: Layout
    switches: tuple[Switch, ...] = ()

    @property
    def seconds_per_100_steps(self) -> float:
        """Return the figure by which runs over one trace compare."""
        return 100 * self.seconds / self.steps if self.steps else math.inf


def check_duration(seconds: float) -> None:
    """Refuse a run of no time or of endless time. Raises PlanError."""
    if not 0.0 < seconds < math.inf:
        raise PlanError(f"the run lasts {seconds} s; it must be above 0 and finite")


def simulate(
    profile: Profile,
    links: Sequence[LinkTrace],
    start: Layout,
    seconds: float,
    engine: Engine | None = None,
    begin: float = 0.0,
) -> Run:
    """Train for `seconds` from an empty pipeline, with one layout or as the engine decides.

    links: between each two neighbours of the profile. A link across others carries what the slowest of theirs does.
    engine: made with `start`. begin: the time of the links at which training starts. Each OBSERVE_SECONDS the engine gets the
    links' mean rates since, those of the time before as well. PlanError where the profile has nothing measured for a layout.
    """
    check_duration(seconds)
    return _Simulation(profile, links, engine, begin, begin + seconds).run(start)


class _Simulation:
    def __init__(
        self, profile: Profile, links: Sequence[LinkTrace], engine: Engine | None, begin: float, end: float
    ) -> None:
        self._profile, self._engine, self._begin, self._end = profile, engine, begin, end
        self._links = {
            (profile.names[near], profile.names[far]): in_series(links[near:far])
            for near, far in combinations(range(len(profile.names)), 2)
        }
        self._traces = {hop: link.uplink for hop, link in self._links.items()}
        self._traces |= {(far, near): link.downlink for (near, far), link in self._links.items()}
        self._observed = 0.0
        self._settled: list[float] = []

    def run(self, start: Layout) -> Run:
        """Train until the end."""
        layout, begin, switches = start, self._begin, list[Switch]()
        while (decided := self._stretch(layout, begin)) is not None:
            decision, drained = decided
            moved = self._moved(drained, layout, decision.layout)
            if moved - drained <= decision.abandon_after_seconds:
                layout = decision.layout
            begin = min(moved, drained + decision.abandon_after_seconds)
            while self._observe_until(begin) is not None:
                continue  # what it decides before the change is over counts for nothing
            assert self._engine is not None
            self._engine.note_deployed(begin, layout)
            switches.append(Switch(begin, layout, begin - drained))
        return Run(self._end - self._begin, steps_until(self._settled, self._begin, self._end), start, tuple(switches))

    def _stretch(self, layout: Layout, begin: float) -> tuple[Decision, float] | None:
        """Train under a layout until the engine decides otherwise. Returns the decision, and the time at which all is drained;
        None at the end of the run."""
        if (decision := self._observe_until(begin)) is not None:
            return decision, begin
        before, until = len(self._settled), self._end if self._engine is None else begin + FIRST_STRETCH_SECONDS
        while True:
            until = min(until, self._end)
            self._settled[before:] = self._simulated(layout, begin, until).settled
            if (decision := self._observe_until(until)) is not None:
                stretch = self._simulated(layout, begin, self._observed)
                self._settled[before:] = stretch.settled
                return decision, max(stretch.done)
            if until == self._end:
                return None
            until = begin + 2.0 * (until - begin)

    def _simulated(self, layout: Layout, begin: float, until: float) -> PlacementRun:
        if len(self._links) == 1 and layout.is_stacked:
            (link,) = self._links.values()
            return simulate_phases(self._profile, layout, link, begin, until)
        step = layout_tasks(self._profile, layout, measured_rates(self._profile))
        return simulate_placement(step, traces=self._traces, begin=begin, until=until)

    def _moved(self, begin: float, before: Layout, after: Layout) -> float:
        """Return the time at which the blocks of a change have moved, and all links are up again."""
        names, end = self._profile.names, begin
        for (sender, receiver), bits in bits_between(self._profile, before, after).items():
            near, far = sorted((sender, receiver))
            carried = self._traces[names[sender], names[receiver]].finish(begin, bits)
            end = max(end, carried + self._links[names[near], names[far]].round_trip_seconds)
        trips = [self._links[hop].round_trip_seconds for layout in (before, after) for hop in self._hops(layout)]
        return end + CHANGE_TRIPS * max(trips, default=0.0)

    def _hops(self, layout: Layout) -> list[Hop]:
        names = self._profile.names
        places = [names.index(worker) for worker in layout.workers]
        return [(names[min(pair)], names[max(pair)]) for pair in pairwise(places)]

    def _observe_until(self, moment: float) -> Decision | None:
        """Make the observations due by then, until the first decision, and return that."""
        while self._engine is not None and self._observed + OBSERVE_SECONDS <= moment:
            since, self._observed = self._observed, self._observed + OBSERVE_SECONDS
            rates: Mapping[Hop, float | None] = {
                hop: trace.mean_between(since, self._observed) for hop, trace in self._traces.items()
            }
            trips = {hop: link.round_trip_seconds for hop, link in self._links.items()}
            step = bisect_right(self._settled, self._observed)
            decision = self._engine.observe(Observation(self._observed, step, rates, trips))
            if (search := self._engine.next_search()) is not None:
                self._engine.weigh(search.question, search.run())
            if decision is not None:
                return decision
        return None


def steps_until(settled: Sequence[float], begin: float, end: float) -> float:
    """Return the batches settled by the end. Between two settlements, they count in proportion."""
    times = np.array([begin, *settled])
    return float(np.interp(end, times, np.arange(len(times))))


def simulate_phases(profile: Profile, layout: Layout, link: LinkTrace, begin: float, until: float) -> PlacementRun:
    """Run a stacked layout of two workers from an empty pipeline at `begin` until it is empty again.

    Each of the four phases of a step serves the batches one by one (paper 000, 4.1). A batch's times follow from those of the
    batch before it and of the one K + 1 before it, so no queue of events is needed. Tests hold it equal to the placement
    simulator, of whose time it takes a small part.

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
