"""All planners over one trace, beside the best fixed deployment, which no planner could know.

Every run starts alike: the link is probed for PROBE_SECONDS, then training begins with what the planner makes of that.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from shared.errors import PlanError
from shared.planner_names import BEST_FIXED, GREEDY
from shared.planning.engine import Engine, EngineConfig
from shared.planning.engine.beliefs import LEAST_RATE
from shared.planning.families.pair import listed
from shared.planning.layout import Layout
from shared.planning.planners.greedy import first_deployment, greedy
from shared.planning.planners.registry import PLANNERS
from shared.planning.profile import Profile
from shared.planning.rates import Rates
from shared.planning.simulator import Run, simulate
from shared.planning.space import SearchSpace
from shared.planning.traces import LinkTrace

PROBE_SECONDS = 5.0
"""How long the link is measured before training starts; it counts into no run."""


def probed_rates(link: LinkTrace) -> Rates:
    """What a link carries while it is probed, before the run begins."""
    uplink, downlink = (
        max(LEAST_RATE, trace.mean_between(0.0, PROBE_SECONDS)) for trace in (link.uplink, link.downlink)
    )
    return Rates(uplink, downlink, link.round_trip_seconds)


@dataclass(frozen=True)
class Result:
    """What one planner achieved."""

    planner: str
    seconds_per_100_steps: float
    run: Run


@dataclass(frozen=True)
class Setting:
    """What all planners of a comparison share."""

    profile: Profile
    link: LinkTrace
    space: SearchSpace
    seconds: float
    engine: EngineConfig

    def probed(self) -> Rates:
        """What the link carried while it was probed."""
        return probed_rates(self.link)

    def mean(self) -> Rates:
        """What the link carries over the whole trace."""
        return Rates(self.link.uplink.mean, self.link.downlink.mean, self.link.round_trip_seconds)

    def expected_steps(self) -> float:
        """About how many steps the run has, by the plan for the mean rates: a user knows how long the training is."""
        return self.seconds / greedy(self.profile, self.mean(), self.space).seconds_per_step

    def run(self, start: Layout, engine: Engine | None = None) -> Run:
        """Train from `start` on."""
        return simulate(self.profile, self.link, start, self.seconds, engine, begin=PROBE_SECONDS)


def run_greedy(setting: Setting) -> Result:
    """The decision engine, from the plan for the probed rates."""
    start = first_deployment(setting.profile, setting.probed(), setting.space)
    engine = Engine(setting.profile, setting.space, start, setting.engine, setting.expected_steps())
    return result_of(GREEDY, setting.run(start, engine))


def run_held(planner: str, setting: Setting) -> Result:
    """What a planner chooses once, for the mean rates of the whole trace: more than it could know."""
    chosen = PLANNERS[planner](setting.profile, setting.mean(), setting.space)
    return result_of(planner, setting.run(chosen.layout))


def run_best_fixed(setting: Setting) -> Result:
    """The best of all deployments of the space, each kept from beginning to end; known only afterwards."""
    found = listed(setting.profile, setting.space, setting.space.best_staleness(setting.profile))
    runs = [setting.run(found.layout(row)) for row in range(len(found))]
    return result_of(BEST_FIXED, max(runs, key=lambda run: run.steps))


CONTESTANTS: dict[str, Callable[[Setting], Result]] = {
    **{name: partial(run_held, name) for name in PLANNERS},
    GREEDY: run_greedy,
    BEST_FIXED: run_best_fixed,
}
"""Every planner, and the best fixed deployment."""


def compare(
    profile: Profile,
    link: LinkTrace,
    space: SearchSpace,
    seconds: float,
    planners: tuple[str, ...] = tuple(CONTESTANTS),
    engine: EngineConfig | None = None,
) -> list[Result]:
    """Each planner's run of `seconds` over the link, which starts again when it ends.

    PlanError when a planner has no deployment to choose, as edge-only where the profile did not measure it.
    """
    unknown = [name for name in planners if name not in CONTESTANTS]
    if unknown:
        raise PlanError(f'there is no planner "{unknown[0]}"; there are {", ".join(CONTESTANTS)}')
    setting = Setting(profile, link, space, seconds, engine or EngineConfig())
    return [CONTESTANTS[name](setting) for name in planners]


def result_of(planner: str, run: Run) -> Result:
    """What a planner achieved by a run."""
    return Result(planner, run.seconds_per_100_steps, run)
