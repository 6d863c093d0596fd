"""Two trainers whose rates swap: how far the choice ever falls behind the better of the two, kept.

Rates swap every 10 to 600 s. Links, profiles and the time between are drawn by chance; the other trainer is probed every
10 s. The layout with either is the best at each moment, without a price, which favours the kept one.
"""

import math
import random
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from benchmarks.planning.flapping import random_profile
from edge_agent.planning import Question, SearchSpace
from edge_agent.planning.candidates import stacked_conditions
from edge_agent.planning.cost import DeviceLinks, handover_seconds
from edge_agent.planning.engine.best import Best
from edge_agent.planning.engine.prospects import Seen
from edge_agent.planning.families.pair import Pairs, best_pairs
from edge_agent.planning.measurements import Floats, Ints

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


class Phase(NamedTuple):
    """The three candidates while rates stay: seconds a step with the best layout of each, that layout's row, and links."""

    seconds: Floats
    rows: Ints
    links: DeviceLinks


def calm(seed: int) -> Calm:
    """Train for an hour with two trainers whose rates swap, and the device alone beside them."""
    draw = random.Random(seed)
    pairs = best_pairs(Question(random_profile(draw), SearchSpace((2, 4, 8, 32))))
    high = 10 ** draw.uniform(6.0, 8.0)
    low = high / 10 ** draw.uniform(0.1, 1.5)
    trip, period, offset = draw.uniform(0.005, 0.15), 10 ** draw.uniform(1.0, math.log10(600.0)), draw.random()
    phases = []
    for rates in ((high, low), (low, high)):
        at = stacked_conditions(np.array(rates), np.array(rates), np.full(2, trip), np.ones(2))
        rows, seconds = pairs.with_each(at)
        alone = pairs.alone()
        assert alone is not None
        endless = np.array([*rates, np.inf])
        links = DeviceLinks(endless, endless, np.array([trip, trip, 0.0]))
        phases.append(Phase(np.append(seconds, alone[1]), np.append(rows, alone[0]), links))
    return _trained(seed, pairs, phases, period, offset)


def _trained(seed: int, pairs: Pairs, phases: list[Phase], period: float, offset: float) -> Calm:
    current, resumes_at, steps, changes = 0, 0.0, 0.0, 0
    policy, known, kept, everyone = Best(3, 0), phases[0].seconds.copy(), np.zeros(3), np.arange(3)
    for second in range(SECONDS):
        seconds, rows, links = phases[int((second / period + offset) % 2)]
        if second % PROBE_SECONDS == 0:
            known = seconds.copy()
        known[current] = seconds[current]
        if second >= resumes_at:
            before = current, int(pairs.cuts[rows[current]])
            moving = handover_seconds(pairs.profile, links, before, (everyone, pairs.cuts[rows]))
            seen = Seen(
                seconds=float(second),
                steps=steps,
                by_row=known[:, None],
                rows=rows,
                step_seconds=known.copy(),
                handover_seconds=moving + known,
                moving_seconds=moving,
                factors=np.ones(3),
                trip_seconds=links.trips,
            )
            place = policy.observe(seen)
            if place is not None:
                resumes_at, current, changes = (
                    second + float(seen.handover_seconds[place.candidate]),
                    place.candidate,
                    changes + 1,
                )
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
