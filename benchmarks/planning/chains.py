"""Chains of three and four workers beside their bound, by the simulator of any placement.

    python -m benchmarks.planning.chains [--count N] [--json PATH]

Six mixes of slow and quick parts, the slowest 60 ms, at K of 0, 1, 2, 3 and 5; and chains whose parts are drawn at random.
Goal: a step takes at most 1.05 of the bound, max(T_max, (T_sum + round trips) / (K + 1)).
"""

import itertools
import random
from collections.abc import Sequence
from itertools import pairwise

from rich.console import Console
from rich.table import Table

from benchmarks.planning.mixes import NEAR_THE_BOUND, mixes
from benchmarks.planning.step_cost import step_cost
from benchmarks.support.arguments import benchmark_parser
from benchmarks.support.report import write_json
from edge_agent.planning import (
    BlockCosts,
    BlockSeconds,
    Linear,
    Rates,
    StepTasks,
    simulate_placement,
    step_tasks,
)
from shared.placement import BlockFacts, Link, ModelFacts, Placement, Rows, Source, Tile

WORKERS, STALENESS = (3, 4), (0, 1, 2, 3, 5)
PERIODS = 12
"""Number of periods of K + 1 steps each, so that the beginning does not count."""


def chain_step(
    staleness: int,
    compute: Sequence[tuple[float, float]],
    carry: Sequence[tuple[float, float]],
    round_trip: float = 0.0,
) -> StepTasks:
    """A block a worker, one after the other. compute: seconds forward and backward; carry: seconds up and down of each hop."""
    workers = tuple(f"w{index}" for index in range(len(compute)))
    whole = Rows(0, 1)
    placement = Placement(
        version=0,
        blocks=len(workers),
        batch_size=1,
        workers=workers,
        tiles=tuple(Tile(worker, index, index + 1, whole) for index, worker in enumerate(workers)),
        sources=(Source(workers[0], whole),),
        staleness=staleness,
    )
    model = ModelFacts(tuple(BlockFacts(worker) for worker in workers))
    block = {
        worker: (BlockSeconds(Linear(forward), Linear(backward), 0.0),) * len(workers)
        for worker, (forward, backward) in zip(workers, compute, strict=True)
    }
    costs = BlockCosts(block, (1.0,) * (len(workers) + 1), (0.0,) * len(workers), 0.0, {})
    hops = {
        Link(near, far): Rates(8 / up, 8 / down, round_trip)
        for (near, far), (up, down) in zip(pairwise(workers), carry, strict=True)
    }
    labels = Link(workers[0], workers[-1])
    return step_tasks(placement, model, costs, {labels: Rates(1.0, 1.0), **hops}, replays=False)


def over_the_bound(step: StepTasks) -> float:
    """The seconds of a step in the steady state, over the bound on them."""
    steps = PERIODS * (step.ahead + 1)
    return simulate_placement(step, steps).seconds_per_step() / step_cost(step).bound()


def random_chain(number: int, staleness: int) -> StepTasks:
    """Three or four workers whose parts, and those of the hops between them, take 10 to 100 ms each."""
    draw = random.Random(number)
    workers = draw.choice(WORKERS)
    both = [(draw.uniform(0.01, 0.1), draw.uniform(0.01, 0.1)) for _ in range(2 * workers - 1)]
    return chain_step(staleness, both[:workers], both[workers:])


def main() -> None:
    """Simulate, and print one table and one line."""
    parser = benchmark_parser("planning.chains", "Chains of workers beside their bound.")
    parser.add_argument("--count", type=int, default=200, help="random chains at each K above 0 (default: 200)")
    arguments = parser.parse_args()
    table = Table("workers", "mix", *(f"K = {staleness}" for staleness in STALENESS), title="step over bound")
    found = {
        (workers, mix.name, staleness): over_the_bound(chain_step(staleness, mix.compute, mix.carry))
        for workers in WORKERS
        for mix in mixes(workers)
        for staleness in STALENESS
    }
    for (workers, name), row in itertools.groupby(found.items(), lambda each: each[0][:2]):
        table.add_row(str(workers), name, *(f"{ratio:.3f}" for _, ratio in row))
    Console(width=120).print(table)
    near = sum(ratio <= NEAR_THE_BOUND for ratio in found.values())
    ratios = [
        over_the_bound(random_chain(number, staleness))
        for staleness in STALENESS[1:]
        for number in range(arguments.count)
    ]
    share = sum(ratio <= NEAR_THE_BOUND for ratio in ratios) / len(ratios)
    print(
        f"{near} of {len(found)} within {NEAR_THE_BOUND}; "
        f"of {len(ratios)} random chains {share:.0%}, the worst {max(ratios):.2f}"
    )
    mixed = [
        {"workers": workers, "mix": name, "staleness": k, "over": ratio} for (workers, name, k), ratio in found.items()
    ]
    write_json(arguments.json, "chains", mixes=mixed, random=ratios)


if __name__ == "__main__":
    main()
