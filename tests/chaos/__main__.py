"""`make chaos`: disturbed runs until so many faults have happened; a table of them by kind, and what was lost."""

import argparse
import asyncio
import itertools
import logging
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import structlog
import torch

from tests.chaos.faults import POINTS, Fault
from tests.chaos.group_varieties import FINISH, has_slices
from tests.chaos.groups import disturbed_group
from tests.chaos.placements import three_tiers
from tests.chaos.run import ONLY, Outcome, disturbed_run
from tests.chaos.varieties import DATA, RECIPES
from tests.support import forked
from tests.support.running import ROOT

FAULTS_PER_RUN = 12
GROUPS = "groups"
GROUPS_EVERY, GROUPS_AT = 5, 1
"""A run is that of a group if its number leaves this remainder by that divisor."""
STALENESS = (0, 0, 5)
"""The staleness of the runs, in turn: the exact ones are compared bit for bit."""


async def disturbed(seed: int, folder: Path, only: str | None = None) -> AsyncIterator[Outcome]:
    """Disturb one run after another. only: runs of this kind, GROUPS or see `disturbed_run`."""
    torch.set_num_threads(1)  # as the runs have: the loops that judge them are to have their bits
    for number in itertools.count(seed):
        staleness = STALENESS[(number - seed) % len(STALENESS)]
        place = folder / str(number)
        place.mkdir(parents=True)
        if only == GROUPS or (not only and number % GROUPS_EVERY == GROUPS_AT):
            outcome = await disturbed_group(number, place, FAULTS_PER_RUN)
        else:
            outcome = await disturbed_run(number, place, staleness, FAULTS_PER_RUN, only)
        if outcome.loss:
            print(f"run {number}: {outcome.loss}", file=sys.stderr, flush=True)
        else:
            shutil.rmtree(place)
        yield outcome


async def _until(faults: int, runs: AsyncIterator[Outcome]) -> list[Outcome]:
    """Disturb runs until so many faults have happened."""
    outcomes: list[Outcome] = []
    async for outcome in runs:
        outcomes.append(outcome)
        if sum(each.faults.total() for each in outcomes) >= faults:
            break
    return outcomes


def table(outcomes: list[Outcome]) -> str:
    """Faults by kind and by point, runs, restarts, losses, and how near the bounds of K the runs came."""
    kinds = sum((outcome.faults for outcome in outcomes), Counter[Fault]())
    at = sum((outcome.points for outcome in outcomes), Counter[str]())
    lines = [f"{kind.value:24} {kinds[kind]:6}" for kind in Fault]
    lines += [f"{at[point]:6} {point}" for point in sorted({point for points in POINTS.values() for point in points})]
    totals = {
        "faults": kinds.total(),
        "runs": len(outcomes),
        "runs of two trainers": sum(outcome.trainers > 1 for outcome in outcomes),
        "runs of shared blocks": sum(outcome.shared is not None for outcome in outcomes),
        "runs of three tiers": sum(outcome.shared is three_tiers for outcome in outcomes),
        "runs that lose no state": sum(outcome.stateless for outcome in outcomes),
        "runs of groups": sum(outcome.members > 1 for outcome in outcomes),
        "runs of groups in slices": sum(outcome.members > 1 and has_slices(outcome.seed) for outcome in outcomes),
        "runs of late groups": sum(outcome.members > 1 and outcome.staleness > 0 for outcome in outcomes),
        "runs with a newcomer": sum(outcome.joined for outcome in outcomes),
        "runs among candidates": sum(outcome.candidates for outcome in outcomes),
        "runs of lost ways": sum(outcome.ways for outcome in outcomes),
        **{
            f"runs with {name}": sum(name in outcome.extras for outcome in outcomes)
            for name in (*RECIPES, *DATA, FINISH)
        },
        "ways through others": sum(outcome.detours for outcome in outcomes),
        "restarts": sum(outcome.restarts for outcome in outcomes),
        "losses": sum(bool(outcome.loss) for outcome in outcomes),
    }
    alone = [outcome for outcome in outcomes if outcome.members <= 1]
    for limit in sorted({outcome.staleness for outcome in alone}):
        seen = [outcome.worst for outcome in alone if outcome.staleness == limit]
        totals[f"K = {limit}: most steps stale"] = max(staleness for staleness, _ in seen)
        totals[f"K = {limit}: most in flight"] = max(in_flight for _, in_flight in seen)
    return "\n".join([*lines, *(f"{name:24} {count:6}" for name, count in totals.items())])


def main() -> int:
    """Returns whether anything was lost."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--faults", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("only", nargs="?", choices=[*ONLY, GROUPS], help="runs of this kind alone")
    arguments = parser.parse_args()
    forked.prepare(ROOT)
    # What the loops that judge the runs say has been said by the runs.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    began, folder = time.monotonic(), Path(tempfile.mkdtemp(prefix="isthmus-chaos-"))
    outcomes = asyncio.run(_until(arguments.faults, disturbed(arguments.seed, folder, arguments.only)))
    print(table(outcomes))
    print(f"{'seconds':24} {time.monotonic() - began:6.0f}")
    return any(outcome.loss for outcome in outcomes)


if __name__ == "__main__":
    sys.exit(main())
