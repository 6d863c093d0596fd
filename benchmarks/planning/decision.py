"""Time of one decision: how long the planner searches every cut, bit width and K of a deep model.

    python -m benchmarks.planning.decision [--blocks N] [--repeats N] [--json PATH]

And of one partition of 50 blocks on a chain of four stages, with four widths, at K of none, 0, 1, 2 and 5.

The goals are below 1 ms for 150 blocks, and below 20 ms for a partition.
"""

import random
import time
from dataclasses import replace
from itertools import pairwise

import numpy as np

from benchmarks.rivals.pair import over
from benchmarks.support.arguments import benchmark_parser
from benchmarks.support.report import Spread, write_json
from edge_agent.planning import (
    Linear,
    MeasuredLink,
    Profile,
    ProfiledBlock,
    Question,
    Rates,
    SearchSpace,
    WorkerProfile,
    best,
    greedy,
    no_times,
    pair_profile,
)

SPACE = SearchSpace(bits=(2, 4, 8, 32), allow_edge_only=True)
CHAIN_BLOCKS, CHAIN_STAGES, CHAIN_STALENESS = 50, 4, (None, 0, 1, 2, 5)


def deep_profile(blocks: int) -> Profile:
    """Every cut measured, K up to 10."""
    draw = random.Random(0)
    features = tuple(draw.uniform(1e4, 1e7) for _ in range(blocks + 1))
    return pair_profile(
        model="deep",
        batch_size=32,
        blocks=tuple(ProfiledBlock(f"block{index}", draw.uniform(1e4, 1e7)) for index in range(blocks)),
        feature_bytes=features,
        gradient_bytes=features,
        edge_seconds=tuple(0.01 * cut for cut in range(blocks + 1)),
        cloud_seconds=tuple(0.001 * (blocks - cut) for cut in range(blocks + 1)),
        encode=Linear(1e-4, 1e-9),
        min_bits=(2,) * (blocks + 1),
        max_staleness=10,
    )


def seconds_per_decision(profile: Profile, repeats: int) -> list[float]:
    """Each at rates and a cut of its own, so that nothing can be remembered from the one before."""
    draw = random.Random(1)
    taken = []
    for _ in range(repeats):
        rates, from_cut = Rates(draw.uniform(1e6, 1e9), draw.uniform(1e6, 1e9)), draw.randint(1, len(profile))
        started = time.perf_counter()
        greedy(Question(profile, SPACE, from_cut=from_cut), over(profile, rates))
        taken.append(time.perf_counter() - started)
    return taken


def deep_chain() -> Profile:
    """Every run of blocks measured on every stage."""
    draw = random.Random(2)
    cuts = CHAIN_BLOCKS + 1
    features = tuple(draw.uniform(1e4, 1e7) for _ in range(cuts))
    names = [f"worker{place}" for place in range(CHAIN_STAGES)]
    return Profile(
        model="deep",
        batch_size=32,
        blocks=tuple(ProfiledBlock(f"block{index}", 1e6) for index in range(CHAIN_BLOCKS)),
        feature_bytes=features,
        gradient_bytes=features,
        workers=tuple(
            WorkerProfile(name, np.random.default_rng(place).uniform(0.01, 1.0, (cuts, cuts)), no_times(CHAIN_BLOCKS))
            for place, name in enumerate(names)
        ),
        links={hop: MeasuredLink(draw.uniform(1e6, 1e9), draw.uniform(1e6, 1e9), 0.02) for hop in pairwise(names)},
        encode=Linear(1e-4, 1e-9),
    )


def seconds_per_partition(chain: Profile, repeats: int) -> list[float]:
    """Each as a whole, from the measured chain to the plan, in turns over the values of K."""
    taken = []
    for number in range(repeats):
        started = time.perf_counter()
        best(Question(chain, replace(SPACE, staleness=CHAIN_STALENESS[number % len(CHAIN_STALENESS)])))
        taken.append(time.perf_counter() - started)
    return taken


def main() -> None:
    """Parse, measure, print, and write the figures if asked to."""
    parser = benchmark_parser("planning.decision", "Time of one decision.")
    parser.add_argument("--blocks", type=int, default=150, help="depth of the model (default: 150)")
    parser.add_argument("--repeats", type=int, default=2000, help="decisions timed (default: 2000)")
    arguments = parser.parse_args()
    profile = deep_profile(arguments.blocks)
    spread = Spread.of(seconds_per_decision(profile, arguments.repeats))
    evaluated = greedy(Question(profile, SPACE), over(profile, Rates(1e7, 1e7))).evaluated
    print(
        f"{arguments.blocks} blocks, {evaluated} deployments: {spread.show(1e3, 3)} ms a decision, median (quartiles)"
    )
    partition = Spread.of(seconds_per_partition(deep_chain(), max(20, arguments.repeats // 10)))
    print(
        f"{CHAIN_BLOCKS} blocks on {CHAIN_STAGES} stages: {partition.show(1e3, 3)} ms a partition, median (quartiles)"
    )
    write_json(
        arguments.json,
        "decision",
        blocks=arguments.blocks,
        evaluated=evaluated,
        seconds=spread,
        partition_seconds=partition,
    )


if __name__ == "__main__":
    main()
