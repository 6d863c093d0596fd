"""Two trainers whose rates swap: how far the choice ever falls behind the better of the two, kept.

Rates swap every 10 to 600 s. Links, profiles and the time between are drawn by chance; the other trainer is probed every
10 s. The layout with either is the best at each moment, without a price, which favours the kept one.
"""

import math
import random
from dataclasses import dataclass

import numpy as np

from benchmarks.planning.flapping import random_profile
from edge_agent.planning import Question, SearchSpace
from edge_agent.planning.choice import Best, CandidateCosts, Seen, stacked_conditions
from edge_agent.planning.choice.handovers import Backbone, End, moved

CASES = 200
SECONDS = 3600
PROBE_SECONDS = 10


@dataclass(frozen=True)
class Calm:
    """The outcome of a case."""

    seed: int
    period_seconds: float
    behind: float
    """Steps of the better kept trainer over those of the choice."""
    changes: int


def calm(seed: int) -> Calm:
    """Train for an hour with two trainers whose rates swap, and the device alone beside them."""
    draw = random.Random(seed)
    costs = CandidateCosts(Question(random_profile(draw), SearchSpace((2, 4, 8, 32))))
    high = 10 ** draw.uniform(6.0, 8.0)
    low = high / 10 ** draw.uniform(0.1, 1.5)
    trip, period, offset = draw.uniform(0.005, 0.15), 10 ** draw.uniform(1.0, math.log10(600.0)), draw.random()
    phases = []
    for rates in ((high, low), (low, high)):
        at = stacked_conditions(np.array(rates), np.array(rates), np.full(2, trip), np.ones(2))
        rows, seconds = costs.best_rows(at)
        alone = costs.alone()
        assert alone is not None
        phases.append(
            (
                np.append(seconds, alone[1]),
                End(
                    np.arange(3),
                    costs.pairs.cuts[np.append(rows, alone[0])],
                    np.array([*rates, np.inf]),
                    np.array([*rates, np.inf]),
                    np.array([trip, trip, 0.0]),
                ),
            )
        )
    return _trained(seed, costs, phases, period, offset)


def _trained(
    seed: int, costs: CandidateCosts, phases: list[tuple[np.ndarray, End]], period: float, offset: float
) -> Calm:
    network, current, resumes_at, steps, changes = Backbone(None, None), 0, 0.0, 0.0, 0
    policy, known, kept = Best(3, 0), phases[0][0].copy(), np.zeros(3)
    for second in range(SECONDS):
        seconds, ends = phases[int((second / period + offset) % 2)]
        if second % PROBE_SECONDS == 0:
            known = seconds.copy()
        known[current] = seconds[current]
        if second >= resumes_at:
            here = End(
                *(getattr(ends, name)[current] for name in ("candidates", "cuts", "uplinks", "downlinks", "trips"))
            )
            pauses = moved(costs.question.profile, network, here, ends).seconds + known
            move = policy.observe(Seen(float(second), steps, known.copy(), pauses, known, ends.trips))
            if move is not None:
                resumes_at, current, changes = second + float(pauses[move.candidate]), move.candidate, changes + 1
                policy.note_moved(float(second), current)
        steps += min(1.0, max(0.0, second + 1.0 - resumes_at)) / seconds[current]
        kept += 1.0 / seconds
    return Calm(seed, period, float(kept[:2].max()) / steps, changes)


def report_calm(cases: int = CASES) -> list[Calm]:
    """Simulate all cases, print the worst, and return them."""
    found = sorted((calm(seed) for seed in range(cases)), key=lambda case: -case.behind)
    ratios = [case.behind for case in found]
    far = sum(ratio > 1.05 for ratio in ratios)
    print(
        f"{cases} cases of rates that swap: the better kept trainer over the choice, median {np.median(ratios):.3f}, worst "
        f"{max(ratios):.3f}, more than 5 % in {far}"
    )
    for case in found[:5]:
        print(f"  {case.behind:.3f}: seed {case.seed}, every {case.period_seconds:.0f} s, {case.changes} changes")
    return found
