"""A training run over a trace without the training: the four modules of the pipeline as a discrete-event model.

Each module serves the batches one by one and in order (paper 000, 4.1), so a batch's moments follow from those of the batch before
it and of the one K + 1 before it, and no queue of events is needed. A new cut waits until the pipeline is empty and then moves the
blocks (Alg. 2, lines 11 to 14); bits and K hold from the next batch on. Drives the very engine that the daemon runs, and shows it
nothing but what the link carried so far.
"""

import math
from dataclasses import dataclass

import numpy as np

from shared.errors import PlanError
from shared.planning.cost import Deployment, Rates, migration_bits, steady_seconds, work_of
from shared.planning.engine import Engine
from shared.planning.planners import SearchSpace, candidates
from shared.planning.profile import Profile
from shared.planning.traces import Link

OBSERVE_SECONDS = 1.0
"""How often the link monitor reports to the engine."""


@dataclass(frozen=True)
class Switch:
    """A change of deployment during a run."""

    seconds: float
    """When training went on with the new deployment, or with the old one after an attempt that was given up."""
    deployment: Deployment
    """What it went on with."""
    paused_seconds: float
    """How long no batch was in work: the blocks' way over the link."""


@dataclass(frozen=True)
class Run:
    """What came of a run."""

    seconds: float
    """How long it was watched."""
    steps: float
    """Batches settled by then, the one under way in proportion."""
    start: Deployment
    switches: tuple[Switch, ...]

    @property
    def seconds_per_100_steps(self) -> float:
        """The figure by which runs over one trace compare."""
        return 100 * self.seconds / self.steps if self.steps else math.inf


class Pipeline:
    """The moments of one batch after another through the four modules, each free as soon as it has passed a batch on."""

    def __init__(self, profile: Profile, link: Link, deployment: Deployment, begin: float = 0.0) -> None:
        """Empty at the moment `begin` of the link. PlanError when the profile has no measurement for the deployment, or a step of it takes no time."""
        self._profile = profile
        self._link = link
        self.settled: list[float] = []
        """Moment at which batch i was settled: its error gradient is back."""
        self._edge_free = self._uplink_free = self._cloud_free = self._downlink_free = begin
        self.change(deployment)

    def change(self, deployment: Deployment) -> None:
        """Run from the next batch on with another deployment."""
        work = work_of(self._profile, [deployment.cut], [deployment.bits])
        if not work.measured()[0]:
            raise PlanError(f"the profile has nothing measured for {deployment}; choose another deployment")
        if not work.edge_seconds[0] + work.cloud_seconds[0] > 0.0:
            raise PlanError(f"the profile has 0 s of work in a step at {deployment}, and such a run would never end")
        self.deployment = deployment
        self._edge_seconds, self._uplink_bits = float(work.edge_seconds[0]), float(work.uplink_bits[0])
        self._cloud_seconds, self._downlink_bits = float(work.cloud_seconds[0]), float(work.downlink_bits[0])
        self._latency_seconds = self._link.latency_seconds if deployment.cut < len(self._profile) else 0.0

    def next_start(self) -> float:
        """When the next batch may start: the edge is free and the batch K + 1 before it is settled."""
        window = self.deployment.staleness + 1
        return max(self._edge_free, self.settled[-window]) if len(self.settled) >= window else self._edge_free

    def step(self) -> None:
        """One batch through the four modules."""
        self._edge_free = self.next_start() + self._edge_seconds
        self._uplink_free = self._link.uplink.finish(max(self._edge_free, self._uplink_free), self._uplink_bits)
        arrived = self._uplink_free + self._latency_seconds
        self._cloud_free = max(arrived, self._cloud_free) + self._cloud_seconds
        self._downlink_free = self._link.downlink.finish(
            max(self._cloud_free, self._downlink_free), self._downlink_bits
        )
        self.settled.append(self._downlink_free + self._latency_seconds)

    def drained(self) -> float:
        """When the last batch admitted is settled."""
        return max(self._edge_free, self.settled[-1]) if self.settled else self._edge_free

    def migrate(self, deployment: Deployment, abandon_after_seconds: float) -> float:
        """Drain, move the blocks, go on with `deployment`, or with the old one when the move takes too long. Seconds of pause."""
        start = self.drained()
        up, down = migration_bits(self._profile, self.deployment.cut, deployment.cut)
        end = (
            self._link.downlink.finish(self._link.uplink.finish(start, float(up)), float(down))
            + self._link.latency_seconds
        )
        if end - start <= abandon_after_seconds:
            self.change(deployment)
        end = min(end, start + abandon_after_seconds)
        self._edge_free = self._uplink_free = self._cloud_free = self._downlink_free = end
        return end - start


def simulate(
    profile: Profile, link: Link, start: Deployment, seconds: float, engine: Engine | None = None, begin: float = 0.0
) -> Run:
    """Train for `seconds` from an empty pipeline, with one deployment or as the engine decides.

    engine: must have been made with `start` as its deployment. Each OBSERVE_SECONDS it is told the link's mean rates since; what
    it decides is done where the next batch would start.
    """
    if not 0.0 < seconds < math.inf:
        raise PlanError(f"the run lasts {seconds} s; it must be above 0 and finite")
    pipeline = Pipeline(profile, link, start, begin)
    switches: list[Switch] = []
    observed = 0.0

    def ask(moment: float):
        """What the engine has to say once it knows all that happened until `moment`."""
        nonlocal observed
        decision = None
        while observed + OBSERVE_SECONDS <= moment:
            since, observed = observed, observed + OBSERVE_SECONDS
            decision = engine.observe(
                observed,
                len(pipeline.settled),
                link.uplink.mean_between(since, observed),
                link.downlink.mean_between(since, observed),
            )
        return decision

    while not pipeline.settled or pipeline.settled[-1] < begin + seconds:
        if engine is not None:
            decision = ask(pipeline.next_start())
            if decision is not None:
                paused = 0.0
                if decision.deployment.cut == pipeline.deployment.cut:
                    pipeline.change(decision.deployment)
                else:
                    paused = pipeline.migrate(decision.deployment, decision.abandon_after_seconds)
                now = pipeline.next_start()
                engine.deployed(now, len(pipeline.settled), pipeline.deployment, paused)
                switches.append(Switch(now, pipeline.deployment, paused))
        pipeline.step()
    return Run(seconds, _steps_until(pipeline.settled, begin, begin + seconds), start, tuple(switches))


def _steps_until(settled: list[float], begin: float, end: float) -> float:
    """Batches settled by the end; between two settlements, in proportion."""
    times = np.array([begin, *settled])
    return float(np.interp(end, times, np.arange(len(times))))


def clairvoyant_steps(profile: Profile, link: Link, seconds: float, space: SearchSpace, begin: float = 0.0) -> float:
    """Steps of one who knows each second's rates before it begins, and changes deployment without delay or cost.

    Each second counts for itself, so nothing carries over from a good second to a bad one as it does in a pipeline: a reference
    to compare with rather than a bound.
    """
    work = candidates(profile, space)
    staleness = space.staleness_range(profile)[-1]
    edges = begin + np.append(np.arange(0.0, seconds, 1.0), seconds)
    steps = 0.0
    for begin, end in zip(edges, edges[1:], strict=False):
        up, down = link.uplink.mean_between(begin, end), link.downlink.mean_between(begin, end)
        stages = work.stages(Rates(max(up, 1.0), max(down, 1.0)))
        steps += (end - begin) / float(steady_seconds(stages, staleness).min())
    return steps
