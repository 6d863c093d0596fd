"""Rivals over traces of links: a choice by hindsight, and one that needs no planner."""

from edge_agent.planning import FLOAT32_BITS, Run, Setting, best, stacked
from edge_agent.planning.families.pair import listed_pairs
from edge_agent.planning.runs.comparison import Contestant

BEST_FIXED, EVEN = "best-fixed", "even"


def run_best_fixed(setting: Setting) -> Run:
    """Run every deployment of the space from beginning to end, and return the best; it is known only afterwards."""
    found = listed_pairs(setting.profile, setting.space, setting.space.best_staleness(setting.profile))
    runs = [setting.run(found.layout(row)) for row in range(len(found))]
    return max(runs, key=lambda run: run.steps)


def run_even(setting: Setting) -> Run:
    """Run an equal number of blocks on each worker, in 32 bits, at the K of the plan."""
    blocks, workers = len(setting.profile), len(setting.profile.workers)
    cuts = tuple(blocks * place // workers for place in range(1, workers))
    staleness = best(setting.question, setting.at(setting.probed())).layout.staleness
    return setting.run(stacked(setting.profile, cuts, staleness, (FLOAT32_BITS,) * len(cuts)))


PAIR: dict[str, Contestant] = {BEST_FIXED: run_best_fixed}
CHAIN: dict[str, Contestant] = {EVEN: run_even}
