"""Planners and the engine over traces of links, beside what no planner could know.

Every run starts alike: the links are probed for PROBE_SECONDS, then training begins with the planner's choice for these rates.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise

from edge_agent.planner_names import BEST_FIXED, EVEN, GREEDY, PARTITION
from edge_agent.planning.cost import Conditions, conditions_of
from edge_agent.planning.engine import Engine, EngineConfig
from edge_agent.planning.engine.beliefs import LEAST_RATE
from edge_agent.planning.families.pair import listed_pairs
from edge_agent.planning.families.question import Question
from edge_agent.planning.layout import Layout, stacked
from edge_agent.planning.measurements import FLOAT32_BITS
from edge_agent.planning.planners.greedy import first_deployment, greedy
from edge_agent.planning.planners.registry import PLANNERS
from edge_agent.planning.profile import Profile
from edge_agent.planning.rates import Rates
from edge_agent.planning.runs.layout_run import simulate_layouts
from edge_agent.planning.runs.pair_run import simulate
from edge_agent.planning.runs.run import PROBE_SECONDS, Run, check_duration
from edge_agent.planning.search import best
from edge_agent.planning.space import SearchSpace
from edge_agent.planning.traces import LinkTrace
from shared.errors import PlanError


@dataclass(frozen=True)
class Result:
    """The result of one planner."""

    planner: str
    seconds_per_100_steps: float
    run: Run


@dataclass(frozen=True)
class Setting:
    """The common settings of all contestants of a comparison."""

    profile: Profile
    links: Sequence[LinkTrace]
    """Links between each two neighbours."""
    space: SearchSpace
    seconds: float
    engine: EngineConfig = field(default_factory=EngineConfig)

    @property
    def question(self) -> Question:
        """Return the question of all planners."""
        return Question(self.profile, self.space)

    def probed(self) -> list[Rates]:
        """Return the links' rates during the probe."""
        return [_rates(link, 0.0, PROBE_SECONDS) for link in self.links]

    def mean(self) -> list[Rates]:
        """Return the links' rates over the whole traces."""
        return [Rates(link.uplink.mean, link.downlink.mean, link.round_trip_seconds) for link in self.links]

    def at(self, rates: Sequence[Rates]) -> Conditions:
        """Return the conditions with these rates between neighbours."""
        return conditions_of(self.profile, dict(zip(pairwise(self.profile.names), rates, strict=True)))

    def run(self, start: Layout, engine: Engine | None = None) -> Run:
        """Train from `start` on."""
        if self.question.is_pair:
            return simulate(self.profile, self.links[0], start, self.seconds, engine, begin=PROBE_SECONDS)
        return simulate_layouts(self.profile, self.links, start, self.seconds, engine, begin=PROBE_SECONDS)

    def run_engine(self, start: Layout, seconds_per_step: float) -> Run:
        """Train from `start` on, as the engine decides.

        seconds_per_step: of the plan for the mean rates, because a user knows the length of the training.
        """
        engine = Engine(self.profile, self.space, start, self.engine, self.seconds / seconds_per_step)
        return self.run(start, engine)


def _rates(link: LinkTrace, begin: float, end: float) -> Rates:
    uplink, downlink = (max(LEAST_RATE, trace.mean_between(begin, end)) for trace in (link.uplink, link.downlink))
    return Rates(uplink, downlink, link.round_trip_seconds)


def run_greedy(setting: Setting) -> Result:
    """Run the decision engine with two workers, from the plan for the probed rates."""
    (probed,), (mean,) = setting.probed(), setting.mean()
    start = first_deployment(setting.profile, probed, setting.space)
    planned = greedy(setting.profile, mean, setting.space)
    return result_of(GREEDY, setting.run_engine(start, planned.seconds_per_step))


def run_held(planner: str, setting: Setting) -> Result:
    """Run a planner's one choice for the mean rates of the whole trace: more than it could know."""
    (mean,) = setting.mean()
    chosen = PLANNERS[planner](setting.profile, mean, setting.space)
    return result_of(planner, setting.run(chosen.layout))


def run_best_fixed(setting: Setting) -> Result:
    """Run every deployment of the space from beginning to end, and return the best; it is known only afterwards."""
    found = listed_pairs(setting.profile, setting.space, setting.space.best_staleness(setting.profile))
    runs = [setting.run(found.layout(row)) for row in range(len(found))]
    return result_of(BEST_FIXED, max(runs, key=lambda run: run.steps))


CONTESTANTS: dict[str, Callable[[Setting], Result]] = {
    **{name: partial(run_held, name) for name in PLANNERS},
    GREEDY: run_greedy,
    BEST_FIXED: run_best_fixed,
}
"""Every planner of two workers, the engine, and the best fixed deployment."""


def run_partition(setting: Setting) -> Result:
    """Run the plan for the probed links; where K is left open, with the least that costs nothing."""
    return result_of(PARTITION, setting.run(_planned(setting)))


def run_chain_engine(setting: Setting) -> Result:
    """Run the decision engine from the same plan."""
    planned = best(setting.question, setting.at(setting.mean()))
    return result_of(GREEDY, setting.run_engine(_planned(setting), planned.seconds_per_step))


def run_even(setting: Setting) -> Result:
    """Run an equal number of blocks on each worker, in 32 bits."""
    blocks, workers = len(setting.profile), len(setting.profile.workers)
    cuts = tuple(blocks * place // workers for place in range(1, workers))
    staleness = _planned(setting).staleness
    return result_of(EVEN, setting.run(stacked(setting.profile, cuts, staleness, (FLOAT32_BITS,) * len(cuts))))


def _planned(setting: Setting) -> Layout:
    return best(setting.question, setting.at(setting.probed())).layout


CHAIN_CONTESTANTS: dict[str, Callable[[Setting], Result]] = {
    PARTITION: run_partition,
    GREEDY: run_chain_engine,
    EVEN: run_even,
}
"""Contestants of a chain."""


def compare(setting: Setting, planners: Sequence[str] = ()) -> list[Result]:
    """Return each planner's run over the links, whose traces start again when they end; that of all if none is named.

    PlanError when a planner has no layout to choose, for example edge-only that the profile did not measure.
    """
    check_duration(setting.seconds)
    known = CONTESTANTS if setting.question.is_pair else CHAIN_CONTESTANTS
    if unknown := [name for name in planners if name not in known]:
        of = "" if setting.question.is_pair else " of a chain"
        raise PlanError(f'there is no planner "{unknown[0]}"{of}; there are {", ".join(known)}')
    return [known[name](setting) for name in planners or known]


def result_of(planner: str, run: Run) -> Result:
    """Summarise a planner's run."""
    return Result(planner, run.seconds_per_100_steps, run)
