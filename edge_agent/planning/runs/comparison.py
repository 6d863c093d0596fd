"""Planners and the engine over traces of links, and their rivals where these are installed.

Every run starts alike: the links are probed for PROBE_SECONDS, then training begins with the planner's choice for these rates.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise

from edge_agent.planner_names import GREEDY, PARTITION
from edge_agent.planning.cost import Conditions, conditions_of
from edge_agent.planning.engine import Engine, EngineConfig
from edge_agent.planning.families.question import Question
from edge_agent.planning.installed import CHAIN_RUNS, PAIR, PAIR_RUNS, installed, there_are
from edge_agent.planning.layout import Layout
from edge_agent.planning.planners.greedy import greedy
from edge_agent.planning.planners.plan import Planner
from edge_agent.planning.planners.registry import PLANNERS, TWO_WORKERS, first_layout
from edge_agent.planning.profile import Profile
from edge_agent.planning.rates import Rates
from edge_agent.planning.runs.simulator import PROBE_SECONDS, Run, check_duration, simulate
from edge_agent.planning.search import best
from edge_agent.planning.space import SearchSpace
from edge_agent.planning.traces import LinkTrace
from shared.errors import PlanError


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
        return [link.rates_between(0.0, PROBE_SECONDS) for link in self.links]

    def mean(self) -> list[Rates]:
        """Return the links' rates over the whole traces."""
        return [Rates(link.uplink.mean, link.downlink.mean, link.round_trip_seconds) for link in self.links]

    def at(self, rates: Sequence[Rates]) -> Conditions:
        """Return the conditions with these rates between neighbours."""
        return conditions_of(self.profile, dict(zip(pairwise(self.profile.names), rates, strict=True)))

    def run(self, start: Layout, engine: Engine | None = None) -> Run:
        """Train from `start` on."""
        return simulate(self.profile, self.links, start, self.seconds, engine, begin=PROBE_SECONDS)


Contestant = Callable[[Setting], Run]


def run_engine(setting: Setting) -> Run:
    """Run the decision engine from its first layout for the probed rates.

    It expects as many steps as the plan for the mean rates has, because a user knows the length of the training.
    """
    question = setting.question
    start = first_layout(question, setting.at(setting.probed()))
    planned = (greedy if question.is_pair else best)(question, setting.at(setting.mean()))
    total_steps = setting.seconds / planned.seconds_per_step
    return setting.run(start, Engine(setting.profile, setting.space, start, setting.engine, total_steps))


def run_held(planner: Planner, setting: Setting) -> Run:
    """Run a planner's one choice for the mean rates of the whole trace: more than it could know."""
    return setting.run(planner(setting.question, setting.at(setting.mean())).layout)


def run_partition(setting: Setting) -> Run:
    """Run the plan for the probed links; where K is left open, with the least that costs nothing."""
    return setting.run(best(setting.question, setting.at(setting.probed())).layout)


def _held(planners: Mapping[str, Planner]) -> dict[str, Contestant]:
    return {name: partial(run_held, planner) for name, planner in planners.items()}


OF_PAIRS: dict[str, Contestant] = {**_held(PLANNERS[TWO_WORKERS]), GREEDY: run_engine}
"""Every planner of two workers, with the engine as that of the greedy one."""
OF_CHAINS: dict[str, Contestant] = {PARTITION: run_partition, GREEDY: run_engine}


def compare(setting: Setting, planners: Sequence[str] = ()) -> dict[str, Run]:
    """Return each planner's run over the links, whose traces start again when they end, by its name.

    Where none is named, all of ours run, and all rivals that have a layout to choose. PlanError for an unknown name, and when a
    planner has no layout to choose, for example edge-only that the profile did not measure.
    """
    check_duration(setting.seconds)
    ours = OF_PAIRS if setting.question.is_pair else OF_CHAINS
    rivals = {} if planners and ours.keys() >= {*planners} else _rivals(setting.question)
    known = {**ours, **rivals}
    if unknown := [name for name in planners if name not in known]:
        of = "" if setting.question.is_pair else " of a chain"
        raise PlanError(f'there is no planner "{unknown[0]}"{of}; {there_are([*known], rivals)}')
    if planners:
        return {name: known[name](setting) for name in planners}
    return {name: run(setting) for name, run in ours.items()} | dict(_able(rivals, setting))


def _rivals(question: Question) -> dict[str, Contestant]:
    return {**_held(installed(PAIR)), **installed(PAIR_RUNS)} if question.is_pair else installed(CHAIN_RUNS)


def _able(rivals: Mapping[str, Contestant], setting: Setting) -> Iterator[tuple[str, Run]]:
    for name, run in rivals.items():
        try:
            yield name, run(setting)
        except PlanError:  # it may not choose, or the profile has not measured, the only layout that it has
            continue
