"""Runs of a chain over traces of its links: the plan for the rates that a probe finds, beside an even split.

Every run starts alike: the links are probed for PROBE_SECONDS, then training begins with the plan for these rates.
"""

from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from itertools import pairwise

from shared.errors import PlanError
from shared.planner_names import EVEN, PARTITION
from shared.planning.chain.chain_tasks import chain_tasks
from shared.planning.comparison import PROBE_SECONDS, Result, probed_rates, result_of
from shared.planning.families.question import Question
from shared.planning.layout import Layout, stacked
from shared.planning.measurements import FLOAT32_BITS
from shared.planning.placement_simulator import simulate_placement
from shared.planning.profile import MeasuredLink, Profile
from shared.planning.search import best
from shared.planning.simulator import Run, check_duration, steps_until
from shared.planning.space import SearchSpace
from shared.planning.tasks import Direction
from shared.planning.traces import LinkTrace, Trace


@dataclass(frozen=True)
class ChainSetting:
    """The common settings of all runs of a comparison."""

    chain: Profile
    links: Sequence[LinkTrace]
    bits: tuple[int, ...]
    staleness: int | None
    seconds: float

    def probed(self) -> Profile:
        """Return the chain over its links as they are during the probe."""
        probed = map(probed_rates, self.links)
        return self.chain.with_links(
            {hop: MeasuredLink(*astuple(rates)) for hop, rates in zip(pairwise(self.chain.names), probed, strict=True)}
        )

    def planned(self) -> Layout:
        """Return the plan for what the probe finds; where K is left open, with the least that costs nothing."""
        return best(Question(self.probed(), SearchSpace(self.bits, self.staleness))).layout

    def run(self, planner: str, layout: Layout) -> Result:
        """Train with one deployment."""
        hops = pairwise(self.chain.names)
        traces: dict[Direction, Trace] = {}
        for (near, far), link in zip(hops, self.links, strict=True):
            traces |= {(near, far): link.uplink, (far, near): link.downlink}
        begin, end = PROBE_SECONDS, PROBE_SECONDS + self.seconds
        step = chain_tasks(self.chain, layout)
        settled = simulate_placement(step, traces=traces, begin=begin, until=end).settled
        return result_of(planner, Run(self.seconds, steps_until(list(settled), begin, end), layout))


def _run_partition(setting: ChainSetting) -> Result:
    return setting.run(PARTITION, setting.planned())


def _run_even(setting: ChainSetting) -> Result:
    blocks, stages = len(setting.chain), len(setting.chain.workers)
    cuts = tuple(blocks * stage // stages for stage in range(1, stages))
    staleness = setting.planned().staleness
    return setting.run(EVEN, stacked(setting.chain, cuts, staleness, (FLOAT32_BITS,) * len(cuts)))


CHAIN_CONTESTANTS: dict[str, Callable[[ChainSetting], Result]] = {
    PARTITION: _run_partition,
    EVEN: _run_even,
}
"""The plan for the probed links, and an equal number of blocks on each stage, in 32 bits."""


def compare_chain(setting: ChainSetting, planners: Sequence[str] = tuple(CHAIN_CONTESTANTS)) -> list[Result]:
    """Run each contestant. PlanError if there is nothing to choose, and for a run of no time."""
    check_duration(setting.seconds)
    unknown = [name for name in planners if name not in CHAIN_CONTESTANTS]
    if unknown:
        raise PlanError(f'there is no planner "{unknown[0]}" of a chain; there are {", ".join(CHAIN_CONTESTANTS)}')
    return [CHAIN_CONTESTANTS[name](setting) for name in planners]
