"""All planners over one trace, side by side: what adapting is worth against what it is measured by.

Every run starts alike: the link is probed for PROBE_SECONDS, then training begins with what the planner makes of that.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from shared.errors import PlanError
from shared.planning.cost import Deployment, Rates
from shared.planning.engine import Engine, EngineConfig
from shared.planning.estimates import LEAST_RATE
from shared.planning.planners import SearchSpace, candidates, edge_only, first_deployment, greedy, jointdnn
from shared.planning.profile import Profile
from shared.planning.simulator import Run, clairvoyant_steps, simulate
from shared.planning.traces import Link

PROBE_SECONDS = 5.0
"""How long the link is measured before training starts; it counts into no run."""


@dataclass(frozen=True)
class Result:
    """What one planner achieved."""

    planner: str
    seconds_per_100_steps: float
    run: Run | None
    """None for the clairvoyant, who is no run but a reckoning."""


@dataclass(frozen=True)
class Setting:
    """What all planners of a comparison share."""

    profile: Profile
    link: Link
    space: SearchSpace
    seconds: float
    engine: EngineConfig

    def probed(self) -> Rates:
        """What the link carried while it was probed."""
        uplink, downlink = (
            max(LEAST_RATE, trace.mean_between(0.0, PROBE_SECONDS)) for trace in (self.link.uplink, self.link.downlink)
        )
        return Rates(uplink, downlink)

    def expected_steps(self) -> float:
        """About how long the run is in steps, which who starts a training knows: by the plan for the mean rates."""
        mean = Rates(self.link.uplink.mean, self.link.downlink.mean)
        return self.seconds / greedy(self.profile, mean, self.space).seconds_per_step

    def run(self, start: Deployment, engine: Engine | None = None) -> Run:
        """Train from `start` on."""
        return simulate(self.profile, self.link, start, self.seconds, engine, begin=PROBE_SECONDS)


def run_greedy(setting: Setting) -> Result:
    """The decision engine, from the plan for the probed rates."""
    start = first_deployment(setting.profile, setting.probed(), setting.space)
    engine = Engine(setting.profile, setting.space, start, setting.engine, setting.expected_steps())
    return _result("greedy", setting.run(start, engine))


def run_jointdnn(setting: Setting) -> Result:
    """JointDNN's one choice, for the mean rates of the whole trace: more than it could know."""
    mean = Rates(setting.link.uplink.mean, setting.link.downlink.mean)
    return _result("jointdnn", setting.run(jointdnn(setting.profile, mean, setting.space.allow_edge_only).deployment))


def run_edge_only(setting: Setting) -> Result:
    """No link at all."""
    return _result("edge-only", setting.run(edge_only(setting.profile, setting.probed()).deployment))


def run_best_fixed(setting: Setting) -> Result:
    """The best of all deployments of the space, each kept from beginning to end; known only afterwards."""
    work, choices = candidates(setting.profile, setting.space), setting.space.best_staleness(setting.profile)
    pairs = list(zip(work.cuts.tolist(), work.bits.tolist(), strict=True))
    runs = [setting.run(Deployment(cut, staleness, bits)) for staleness in choices for cut, bits in pairs]
    return _result("best-fixed", max(runs, key=lambda run: run.steps))


def run_clairvoyant(setting: Setting) -> Result:
    """The best deployment of each second, known beforehand and changed for nothing."""
    steps = clairvoyant_steps(setting.profile, setting.link, setting.seconds, setting.space, begin=PROBE_SECONDS)
    return Result("clairvoyant", 100 * setting.seconds / steps if steps else math.inf, None)


PLANNERS: dict[str, Callable[[Setting], Result]] = {
    "greedy": run_greedy,
    "jointdnn": run_jointdnn,
    "edge-only": run_edge_only,
    "best-fixed": run_best_fixed,
    "clairvoyant": run_clairvoyant,
}


def compare(
    profile: Profile,
    link: Link,
    space: SearchSpace,
    seconds: float,
    planners: tuple[str, ...] = tuple(PLANNERS),
    engine: EngineConfig | None = None,
) -> list[Result]:
    """Each planner's run of `seconds` over the link, which begins anew when it ends.

    PlanError when a planner has no deployment to choose, as edge-only where the profile did not measure it.
    """
    unknown = [name for name in planners if name not in PLANNERS]
    if unknown:
        raise PlanError(f'there is no planner "{unknown[0]}"; there are {", ".join(PLANNERS)}')
    setting = Setting(profile, link, space, seconds, engine or EngineConfig())
    return [PLANNERS[name](setting) for name in planners]


def _result(planner: str, run: Run) -> Result:
    return Result(planner, run.seconds_per_100_steps, run)
