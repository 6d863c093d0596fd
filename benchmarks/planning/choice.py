"""Choosing among trainers: the time of a ranking, and how soon a wrong profile is corrected.

    python -m benchmarks.planning.choice [--trainers N] [--blocks N] [--repeats N] [--cases N] [--json PATH]

The goals: 5 ms for 8 trainers and 150 blocks; and where the times of the profile are off by up to 25 %, within 5 % of the best
layout after at most 4 changes, in 95 % of 1,000 cases. Algorithm 2 of paper 003, which moves the cut by one block a cycle,
stands beside it, with as many changes and with as many as it likes.
"""

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.planning.decision import SPACE, deep_profile
from benchmarks.planning.flapping import random_profile
from benchmarks.planning.tuning import Tuning
from benchmarks.support.arguments import benchmark_parser
from benchmarks.support.report import Spread, write_json
from edge_agent.planning import Conditions, Profile, Question, Rates, SearchSpace
from edge_agent.planning.candidates import Candidate, conditions_for, ranked_candidates
from edge_agent.planning.families.pair import Pairs, best_pairs
from edge_agent.planning.measurements import Floats
from edge_agent.planning.papers.edgemove import CutClimb, first_cut

MARGIN = 0.05
OFF = 0.25
"""Part by which a time of the profile may be wrong."""
MOST_CHANGES = 4
MOST_CYCLES = 200
TUNED_SPACE = SearchSpace((8, 32))


@dataclass(frozen=True)
class Tuned:
    """Distance from the best at the end of each way of tuning: ratios of the seconds a step."""

    seed: int
    start: float
    tuned: float
    changes: int
    climbed: float
    """Algorithm 2, after as many changes as may be."""
    rested: float
    """Algorithm 2 at rest."""
    climb_changes: int


def seconds_per_ranking(trainers: int, blocks: int, repeats: int) -> list[float]:
    """Return the seconds of each ranking, from the profile to the list; each over rates of its own."""
    draw, profile = random.Random(1), deep_profile(blocks)
    taken = []
    for _ in range(repeats):
        candidates = random_candidates(draw, trainers)
        started = time.perf_counter()
        ranked_candidates(Question(profile, SPACE), candidates)
        taken.append(time.perf_counter() - started)
    return taken


def random_candidates(draw: random.Random, count: int) -> list[Candidate]:
    """Draw trainers over links from slow to fast."""
    return [
        Candidate(
            f"trainer{number}",
            Rates(10 ** draw.uniform(6, 9), 10 ** draw.uniform(6, 9), draw.uniform(0.0, 0.2)),
            draw.choice((1.0, 0.7)),
            draw.choice((0.0, draw.random())),
            draw.randint(0, 4),
        )
        for number in range(count)
    ]


def off_by_chance(profile: Profile, draw: random.Random) -> Profile:
    """Return the truth beside a profile: each worker as a whole, and each block on it, takes up to `OFF` more or less."""
    wrong = profile
    for worker in profile.workers:
        table = worker.replayed
        is_first = np.isfinite(table[0]).any()
        measured = table[0] if is_first else table[:, -1]
        common = draw.uniform(1.0 - OFF, 1.0 + OFF)
        factors = np.array([common * draw.uniform(1.0 - OFF, 1.0 + OFF) for _ in measured])
        truth = _with_factors(measured if is_first else measured[::-1], factors)
        changed = table.copy()
        if is_first:
            changed[0] = truth
        else:
            changed[:, -1] = truth[::-1]
        wrong = wrong.with_worker(replace(worker, replayed=changed))
    return wrong


def _with_factors(cumulative: Floats, factors: Floats) -> Floats:
    """Return seconds up to each cut, of which each block's part is multiplied."""
    known = np.flatnonzero(np.isfinite(cumulative))
    parts = np.diff(cumulative[known], prepend=0.0)
    truth = np.full_like(cumulative, np.nan)
    truth[known] = np.maximum(1e-6, np.cumsum(parts * factors[known]))
    return truth


def tuned(seed: int) -> Tuned:
    """Tune with one trainer, and climb by Algorithm 2, from the plan of the profile."""
    draw = random.Random(seed)
    profile = random_profile(draw)
    truth = off_by_chance(profile, draw)
    at = conditions_for(random_candidates(draw, 1))
    at = Conditions(at.rates[0], at.trips[0], at.factors[0])
    foreseen, real = (best_pairs(Question(each, TUNED_SPACE)) for each in (profile, truth))
    seconds = real.loads.seconds(at)
    least = float(seconds.min())
    row = start = int(np.argmin(foreseen.loads.seconds(at)))
    tuning, changes = Tuning(foreseen, MARGIN), 0
    while changes < MOST_CHANGES:
        work = [float(real.loads.work[place][row] * at.factors[place]) for place in (0, 1)]
        tuning.record(row, at, (work[0], work[1]), float(seconds[row]))
        later = tuning.choose(row, at)
        if later == row:
            break
        row, changes = later, changes + 1
    climb = _climbed(foreseen, seconds, at, draw)
    return Tuned(
        seed,
        float(seconds[start]) / least,
        float(seconds[row]) / least,
        changes,
        climb[min(MOST_CHANGES, len(climb) - 1)] / least,
        climb[-1] / least,
        len(climb) - 1,
    )


def _climbed(pairs: Pairs, seconds: Floats, at: Conditions, draw: random.Random) -> list[float]:
    """Return the seconds a step at the best cut of Algorithm 2 so far, after each change, with the best bits and K there."""
    profile, cuts = pairs.profile, np.unique(pairs.cuts)
    device, trainer = profile.workers[0].replayed[0], profile.workers[1].replayed[:, -1] * at.factors[1]
    whole_device, whole_trainer = float(device[np.isfinite(device)][-1]), float(trainer[np.isfinite(trainer)][0])
    wanted = first_cut(len(profile), whole_device, whole_trainer, float(at.trips[0, 1]))
    by_cut = {int(cut): float(seconds[pairs.cuts == cut].min()) for cut in cuts}
    climb = CutClimb(min(by_cut, key=lambda cut: abs(cut - wanted)), sorted(by_cut), draw)
    taken = [by_cut[climb.cut]]
    while not climb.is_resting and len(taken) <= MOST_CYCLES:
        before = climb.cut
        after = climb.end_cycle(by_cut[before])
        if after != before:
            taken.append(by_cut[after])
    return [min(taken[: count + 1]) for count in range(len(taken))]


def share_within(ratios: Sequence[float], most: float = 1.05) -> float:
    """Return the part of the cases that are within 5 % of the best."""
    return sum(ratio <= most for ratio in ratios) / len(ratios)


def main() -> None:
    """Parse, measure, print, and write the figures if asked to."""
    parser = benchmark_parser("planning.choice", "Choosing among trainers.")
    parser.add_argument("--trainers", type=int, default=8, help="candidates of a ranking (default: 8)")
    parser.add_argument("--blocks", type=int, default=150, help="depth of the model (default: 150)")
    parser.add_argument("--repeats", type=int, default=500, help="rankings timed (default: 500)")
    parser.add_argument("--cases", type=int, default=1000, help="wrong profiles (default: 1000)")
    arguments = parser.parse_args()
    spread = Spread.of(seconds_per_ranking(arguments.trainers, arguments.blocks, arguments.repeats))
    print(
        f"{arguments.trainers} trainers, {arguments.blocks} blocks: {spread.show(1e3, 2)} ms a ranking, median (quartiles)"
    )
    cases = [tuned(seed) for seed in range(arguments.cases)]
    columns = {
        "as planned": [case.start for case in cases],
        "tuned": [case.tuned for case in cases],
        f"Algorithm 2, {MOST_CHANGES} changes": [case.climbed for case in cases],
        "Algorithm 2 at rest": [case.rested for case in cases],
    }
    for name, ratios in columns.items():
        print(f"{name:<24} within 5 % of the best in {share_within(ratios):.1%}, worst {max(ratios):.2f}")
    changes, climbs = (
        Spread.of([float(n) for n in each]) for each in zip(*((c.changes, c.climb_changes) for c in cases), strict=True)
    )
    print(f"changes: tuned {changes.show(1, 0)}, Algorithm 2 {climbs.show(1, 0)}")
    write_json(arguments.json, "choice", seconds=spread, cases=cases)


if __name__ == "__main__":
    main()
