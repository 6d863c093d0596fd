"""Oscillating links: how much slower the engine ever gets than the deployment it began with.

    python -m benchmarks.planning.flapping [--cases N] [--minutes M] [--first SEED] [--longest-period S] [--json PATH]

Random profiles of 3 to 20 blocks, from light to heavy, on square waves of a period from 1 s to 5 min whose rates differ up to
30 times; the start is the best deployment for one of the two rates. The goal is at most 3 % slower, always.
"""

import math
import random
import statistics
from dataclasses import dataclass, replace
from operator import attrgetter

from rich.console import Console

from benchmarks.rivals.pair import over
from benchmarks.support.arguments import benchmark_parser
from benchmarks.support.report import write_json
from edge_agent.planning import (
    PROBE_SECONDS,
    Engine,
    Layout,
    Linear,
    LinkTrace,
    Profile,
    ProfiledBlock,
    Question,
    Rates,
    SearchSpace,
    Trace,
    greedy,
    pair_profile,
    simulate,
)

SPACE = SearchSpace((2, 4, 8, 32))
LONGEST_PERIOD_SECONDS = 300.0


@dataclass(frozen=True)
class Case:
    """One profile on one oscillating link."""

    seed: int
    profile: Profile
    link: LinkTrace
    period_seconds: float
    rates_mbit: tuple[float, float]
    """In the first and in the second half of the period."""
    start: Layout


@dataclass(frozen=True)
class Outcome:
    """The outcome of one run."""

    seed: int
    period_seconds: float
    rates_mbit: tuple[float, float]
    blocks: int
    start: str
    steps_of_start: float
    ratio: float
    """Our time over that of the starting deployment."""
    changes: int


def random_profile(draw: random.Random) -> Profile:
    """Compute that grows with the cut, features that shrink, blocks that grow, each by chance."""
    blocks = draw.randint(3, 20)
    between = blocks - 1
    edge_total = 10 ** draw.uniform(-0.7, 1)
    cloud_total = edge_total * 10 ** draw.uniform(-2, -0.5)
    shares = [*sorted(draw.random() for _ in range(between)), 1.0]
    feature_bytes, shrink = 10 ** draw.uniform(4.5, 7), draw.uniform(0, 0.5)
    features = [feature_bytes * math.exp(-shrink * i) * draw.uniform(0.5, 1.5) for i in range(between)]
    block_bytes, growth = 10 ** draw.uniform(3, 6), draw.uniform(0.9, 1.4)
    return pair_profile(
        model="random",
        batch_size=32,
        blocks=tuple(ProfiledBlock(f"block{i}", min(block_bytes * growth**i, 2e7)) for i in range(blocks)),
        feature_bytes=(None, *features, None),
        gradient_bytes=(None, *features, None),
        edge_seconds=(None, *(edge_total * share + 1e-3 for share in shares)),
        cloud_seconds=(None, *(cloud_total * (1 - share) + 1e-3 for share in shares)),
        encode=Linear(0.0, 10 ** draw.uniform(-9, -7.6)),
        min_bits=None,
        max_staleness=draw.randint(0, 6),
    )


def random_case(seed: int, longest_period_seconds: float = LONGEST_PERIOD_SECONDS) -> Case:
    """The case of a seed, with a period from 1 s on."""
    draw = random.Random(seed)
    profile = random_profile(draw)
    high = 10 ** draw.uniform(0, 2)
    low = high / 10 ** draw.uniform(0.1, 1.5)
    period = 10 ** draw.uniform(0, math.log10(longest_period_seconds))
    rates = (high, low) if draw.random() < 0.5 else (low, high)
    trace = Trace.of_durations([period / 2] * 2, [rate * 1e6 for rate in rates])
    known = draw.choice(rates) * 1e6
    planned = greedy(Question(profile, SPACE), over(profile, Rates(known, known))).layout
    return Case(
        seed, profile, LinkTrace(trace, trace), period, rates, replace(planned, staleness=profile.max_staleness or 0)
    )


def measure(case: Case, seconds: float) -> Outcome:
    """Both runs of a case."""
    kept = simulate(case.profile, [case.link], case.start, seconds, begin=PROBE_SECONDS)
    engine = Engine(case.profile, SPACE, case.start, total_steps=kept.steps)
    ours = simulate(case.profile, [case.link], case.start, seconds, engine, begin=PROBE_SECONDS)
    return Outcome(
        case.seed,
        case.period_seconds,
        case.rates_mbit,
        len(case.profile),
        str(case.start),
        kept.steps,
        kept.steps / ours.steps,
        len(ours.switches),
    )


def main() -> None:
    """Parse, simulate, print, and write the figures if asked to."""
    parser = benchmark_parser("planning.flapping", "Oscillating links.")
    parser.add_argument("--cases", type=int, default=500, help="how many (default: 500)")
    parser.add_argument("--minutes", type=float, default=20.0, help="length of each run (default: 20)")
    parser.add_argument("--first", type=int, default=0, help="seed of the first case (default: 0)")
    parser.add_argument(
        "--longest-period", type=float, default=LONGEST_PERIOD_SECONDS, help="in seconds (default: 300)"
    )
    arguments = parser.parse_args()
    seeds = range(arguments.first, arguments.first + arguments.cases)
    outcomes = [measure(random_case(seed, arguments.longest_period), arguments.minutes * 60) for seed in seeds]
    outcomes.sort(key=attrgetter("ratio"), reverse=True)
    slower = sum(outcome.ratio > 1.03 for outcome in outcomes)
    mean = statistics.fmean(outcome.ratio for outcome in outcomes)
    console = Console()
    console.print(
        f"{len(outcomes)} cases of {arguments.minutes:g} min: time over that of the start, mean {mean:.3f}, ", end=""
    )
    console.print(f"worst {outcomes[0].ratio:.3f}, more than 3 % slower in {slower}")
    for outcome in outcomes[:5]:
        first, second = outcome.rates_mbit
        console.print(
            f"  {outcome.ratio:.3f}: seed {outcome.seed}, {first:.2f} and {second:.2f} Mbit/s every "
            f"{outcome.period_seconds:.1f} s, {outcome.blocks} blocks, from {outcome.start}, {outcome.changes} changes"
        )
    write_json(arguments.json, "flapping", outcomes=outcomes)


if __name__ == "__main__":
    main()
