"""A simulated training run over a trace: the four phases of the pipeline as a discrete-event model.

Each phase serves the batches one by one and in order (paper 000, 4.1), so a batch's times follow from those of the
batch before it and of the one K + 1 before it, and no queue of events is needed. A change waits until the pipeline is
empty and then moves the blocks (Alg. 2, lines 11 to 14), commits and dials again. The engine is the one of a real run, and
it sees only what the link carried so far.

`layout_run.py` agrees with it for two workers, runs any layout, and takes far longer.
"""

from bisect import bisect_right

from edge_agent.planning.cost import loads_of, moved_bits, runs_of
from edge_agent.planning.engine import Decision, Engine, Observation
from edge_agent.planning.engine.moves import CHANGE_TRIPS
from edge_agent.planning.layout import Layout
from edge_agent.planning.profile import Profile
from edge_agent.planning.runs.run import OBSERVE_SECONDS, Run, Switch, check_duration, observe_and_search, steps_until
from edge_agent.planning.traces import LinkTrace
from shared.errors import PlanError


class SimulatedPipeline:
    """The times of one batch after another through the four phases, each free as soon as it has passed a batch on."""

    def __init__(self, profile: Profile, link: LinkTrace, layout: Layout, begin: float = 0.0) -> None:
        """begin: the time of the link at which the pipeline starts empty.

        PlanError when the profile has no measurement for the deployment, or a step of it takes no time.
        """
        self._profile = profile
        self._link = link
        self.settled: list[float] = []
        """Times at which each batch was settled: its error gradient is back."""
        self._edge_free = self._uplink_free = self._cloud_free = self._downlink_free = begin
        self.change(layout)

    def change(self, layout: Layout) -> None:
        """Run from the next batch on under another layout."""
        loads = loads_of(self._profile, [layout])
        if not loads.measured()[0]:
            raise PlanError(f"the profile has nothing measured for {layout}; choose another deployment")
        computing, self._cloud_seconds = (float(loads.work[place][0]) for place in (0, 1))
        if not computing + self._cloud_seconds > 0.0:
            raise PlanError(f"the profile has 0 s of work in a step at {layout}, and such a run would never end")
        self.layout = layout
        self._edge_seconds = computing + float(loads.paths.waited[0])
        self._busy_seconds = computing + (float(loads.host[0][0]) if 0 in loads.host else 0.0)
        self._uplink_bits, self._downlink_bits = float(loads.bits[0, 1][0]), float(loads.bits[1, 0][0])
        self._one_way_seconds = (
            sum(float(halves[0]) for halves in loads.paths.halves.values()) * self._link.round_trip_seconds / 4
        )

    def next_start(self) -> float:
        """Return the time at which the next batch may start: the edge is free and the batch K + 1 before it is settled."""
        window = self.layout.staleness + 1
        return max(self._edge_free, self.settled[-window]) if len(self.settled) >= window else self._edge_free

    def step(self) -> None:
        """Run one batch through the four phases."""
        start = self.next_start()
        ready, self._edge_free = start + self._edge_seconds, start + self._busy_seconds
        self._uplink_free = self._link.uplink.finish(max(ready, self._uplink_free), self._uplink_bits)
        arrived = self._uplink_free + self._one_way_seconds
        self._cloud_free = max(arrived, self._cloud_free) + self._cloud_seconds
        self._downlink_free = self._link.downlink.finish(
            max(self._cloud_free, self._downlink_free), self._downlink_bits
        )
        self.settled.append(self._downlink_free + self._one_way_seconds)

    def drained(self) -> float:
        """Return the time at which the last started batch is settled."""
        return max(self._edge_free, self.settled[-1]) if self.settled else self._edge_free

    def migrate(self, layout: Layout, abandon_after_seconds: float) -> float:
        """Drain, move the blocks, and continue under `layout`, or as before when that takes too long. Returns the
        seconds of pause."""
        start = self.drained()
        before, after = (runs_of(self._profile, [each]) for each in (self.layout, layout))
        moved = moved_bits(self._profile, before, after)
        carried = self._link.uplink.finish(start, float(moved[0, 1][0]))
        carried = self._link.downlink.finish(carried, float(moved[1, 0][0]))
        trips = CHANGE_TRIPS + int((before[1] != after[1]).any())
        end = carried + trips * self._link.round_trip_seconds
        if end - start <= abandon_after_seconds:
            self.change(layout)
        end = min(end, start + abandon_after_seconds)
        self._edge_free = self._uplink_free = self._cloud_free = self._downlink_free = end
        return end - start


def simulate(
    profile: Profile,
    link: LinkTrace,
    start: Layout,
    seconds: float,
    engine: Engine | None = None,
    begin: float = 0.0,
) -> Run:
    """Train for `seconds` from an empty pipeline, with one deployment or as the engine decides.

    engine: made with `start` as its deployment. Each OBSERVE_SECONDS it gets the link's mean rates since. Its decision
    is carried out where the next batch would start. begin: the time of the link at which training starts. The engine
    gets the time before as well.
    """
    check_duration(seconds)
    pipeline = SimulatedPipeline(profile, link, start, begin)
    monitor = _Monitor(link, pipeline, engine) if engine is not None else None
    switches: list[Switch] = []
    while not pipeline.settled or pipeline.settled[-1] < begin + seconds:
        if monitor is not None and (decision := monitor.observe_until(pipeline.next_start())) is not None:
            paused = pipeline.migrate(decision.layout, decision.abandon_after_seconds)
            now = pipeline.next_start()
            monitor.observe_until(now)
            monitor.engine.note_deployed(now, pipeline.layout)
            switches.append(Switch(now, pipeline.layout, paused))
        pipeline.step()
    return Run(seconds, steps_until(pipeline.settled, begin, begin + seconds), start, tuple(switches))


class _Monitor:
    """The monitor that tells the engine each OBSERVE_SECONDS what the link carried since, and nothing of the future."""

    def __init__(self, link: LinkTrace, pipeline: SimulatedPipeline, engine: Engine) -> None:
        self.engine = engine
        self._link = link
        self._pipeline = pipeline
        self._observed = 0.0

    def observe_until(self, moment: float) -> Decision | None:
        """Make all observations due by then, and return the first decision."""
        first: Decision | None = None
        while self._observed + OBSERVE_SECONDS <= moment:
            since, self._observed = self._observed, self._observed + OBSERVE_SECONDS
            near, far = self.engine.names
            up, down = (trace.mean_between(since, self._observed) for trace in (self._link.uplink, self._link.downlink))
            seen = Observation(
                self._observed,
                bisect_right(self._pipeline.settled, self._observed),
                {(near, far): up, (far, near): down},
                {(near, far): self._link.round_trip_seconds},
            )
            decision = observe_and_search(self.engine, seen)
            first = first or decision
        return first
