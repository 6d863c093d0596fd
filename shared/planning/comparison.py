"""All planners over one trace, beside the best fixed deployment, which no planner could know.

Every run starts alike: the link is probed for PROBE_SECONDS, then training begins with the planner's choice for these rates.
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
"""Time for which the link is measured before training starts. It counts into no run."""


def probed_rates(link: LinkTrace) -> Rates:
    """Return the rates of a link during the probe, before the run begins."""
    uplink, downlink = (
        max(LEAST_RATE, trace.mean_between(0.0, PROBE_SECONDS)) for trace in (link.uplink, link.downlink)
    )
    return Rates(uplink, downlink, link.round_trip_seconds)


@dataclass(frozen=True)
class Result:
    """The result of one planner."""

    planner: str
    seconds_per_100_steps: float
    run: Run


@dataclass(frozen=True)
class Setting:
    """The common settings of all planners of a comparison."""

    profile: Profile
    link: LinkTrace
    space: SearchSpace
    seconds: float
    engine: EngineConfig

    def probed(self) -> Rates:
        """Return the link's rates during the probe."""
        return probed_rates(self.link)

    def mean(self) -> Rates:
        """Return the link's rates over the whole trace."""
        return Rates(self.link.uplink.mean, self.link.downlink.mean, self.link.round_trip_seconds)

    def expected_steps(self) -> float:
        """Return about how many steps the run has, by the plan for the mean rates. A user knows the length of the training."""
        return self.seconds / greedy(self.profile, self.mean(), self.space).seconds_per_step

    def run(self, start: Layout, engine: Engine | None = None) -> Run:
        """Train from `start` on."""
        return simulate(self.profile, self.link, start, self.seconds, engine, begin=PROBE_SECONDS)


def run_greedy(setting: Setting) -> Result:
    """Run the decision engine, from the plan for the probed rates."""
    start = first_deployment(setting.profile, setting.probed(), setting.space)
    engine = Engine(setting.profile, setting.space, start, setting.engine, setting.expected_steps())
    return result_of(GREEDY, setting.run(start, engine))


def run_held(planner: str, setting: Setting) -> Result:
    """Run a planner's one choice for the mean rates of the whole trace: more than it could know."""
    chosen = PLANNERS[planner](setting.profile, setting.mean(), setting.space)
    return result_of(planner, setting.run(chosen.layout))


def run_best_fixed(setting: Setting) -> Result:
    """Run every deployment of the space from beginning to end, and return the best; it is known only afterwards."""
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
    """Return each planner's run of `seconds` over the link, which starts again when it ends.

    PlanError when a planner has no deployment to choose, for example edge-only that the profile did not measure.
    """
    unknown = [name for name in planners if name not in CONTESTANTS]
    if unknown:
        raise PlanError(f'there is no planner "{unknown[0]}"; there are {", ".join(CONTESTANTS)}')
    setting = Setting(profile, link, space, seconds, engine or EngineConfig())
    return [CONTESTANTS[name](setting) for name in planners]


def result_of(planner: str, run: Run) -> Result:
    """Summarise a planner's run."""
    return Result(planner, run.seconds_per_100_steps, run)
