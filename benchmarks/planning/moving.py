"""A device that moves among the edge servers of Melbourne (paper 003): the choice of a trainer against every other policy.

    python -m benchmarks.planning.moving SITES PROFILES [--paths N] [--minutes M] [--parts PART ...] [--json PATH]

SITES is the EUA data set's list of 125 sites, PROFILES the folder of paper 000's tables. The parts:

- `paths`: random paths at 1.4, 2.8, 10 and 20 m/s with the tables of both devices. Goals, without 2.8 m/s: a median of 1.10
  times the bound and 1.25 at worst; at most 3 % slower than any other policy in 95 %, and never 10 %; twice the speed costs
  3 % at most. With blocks of 188 MB in all, 1, 4 and 8 % of the time in pauses.
- `foresight`: the same paths at 10 and 20 m/s with the table of the TX2, for one that knows them; see `moving_foresight.py`.
- `paper`: profiles with the ratios of Table 1; see `moving_paper.py`.
- `calm`: two trainers whose rates swap; see `moving_calm.py`.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path as FilePath
from statistics import fmean, median

import numpy as np

from benchmarks.planning.moving_calm import report_calm
from benchmarks.planning.moving_foresight import most_steps
from benchmarks.planning.moving_paper import report_paper
from benchmarks.planning.moving_paths import NETWORK, random_path
from benchmarks.planning.paper_profiles import DEVICES, vgg19_profile
from benchmarks.rivals.moving import MOVE_POLICY_NAMES, MoveRun, Site, World, load_sites, simulate_moves
from benchmarks.support.arguments import benchmark_parser
from benchmarks.support.report import write_json
from edge_agent.planning import Profile, Question, SearchSpace
from edge_agent.planning.families.pair import best_pairs

SPEEDS = (1.4, 10.0, 20.0)
"""Metres per second: on foot, in a tram, in a car."""
TWICE = {2.8: 1.4, 20.0: 10.0}
"""Speeds that are twice another one."""
PARTS = ("paths", "foresight", "paper", "calm")
FORESIGHT_RATIOS = {
    "best": "best, 20 over 10 m/s",
    "foresight": "one that knows the path, 20 over 10 m/s",
    "best over foresight": "best over that one, 20 m/s",
}
RESNET_BYTES = 188e6
"""Bytes of ResNet-50 with momentum."""
RIVALS = tuple(name for name in MOVE_POLICY_NAMES if name not in ("best", "lower-bound"))


@dataclass(frozen=True)
class Journey:
    """All policies on one path."""

    seed: int
    device: str
    metres_per_second: float
    steps: dict[str, float]
    handovers: dict[str, int]
    paused: dict[str, float]
    """Part of the time in pauses."""
    paused_188: float
    """Same of `best`, with blocks of 188 MB."""

    def behind(self, policy: str) -> float:
        """Return the time of a step of `best` over that of another policy."""
        return self.steps[policy] / self.steps["best"]


def journey(seed: int, device: str, speed: float, profile: Profile, sites: Sequence[Site], seconds: float) -> Journey:
    """Simulate every policy on the path of a seed."""
    world = world_of(profile, sites, seed, speed, seconds)
    runs = {run.policy: run for run in simulate_moves(world, seed=seed)}
    share = RESNET_BYTES / float(profile.bytes_before[-1])
    lighter = replace(profile, blocks=tuple(replace(block, bytes=block.bytes * share) for block in profile.blocks))
    (light,) = simulate_moves(world_of(lighter, sites, seed, speed, seconds), ["best"], seed)
    return Journey(
        seed,
        device,
        speed,
        {name: run.steps for name, run in runs.items()},
        {name: len(run.handovers) for name, run in runs.items()},
        {name: _paused(run, world.seconds) for name, run in runs.items()},
        _paused(light, world.seconds),
    )


def world_of(profile: Profile, sites: Sequence[Site], seed: int, speed: float, seconds: float) -> World:
    """Return the path of a seed among the sites."""
    path = random_path(random.Random(seed), sites, speed, seconds)
    return World(best_pairs(Question(profile, SearchSpace((8, 32)))), sites, path, NETWORK)


def _paused(run: MoveRun, seconds: int) -> float:
    return sum(each.paused_seconds for each in run.handovers) / seconds


def spread(ratios: Sequence[float]) -> str:
    """Return the median, the middle nine tenths and the extremes of some ratios."""
    least, low, high, most = np.quantile(ratios, (0.0, 0.05, 0.95, 1.0))
    return f"{median(ratios):.3f} ({low:.3f} to {high:.3f}; {least:.3f} to {most:.3f})"


def report_paths(journeys: Sequence[Journey]) -> None:
    """Print the ratios beside their goals."""
    judged = [each for each in journeys if each.metres_per_second in SPEEDS]
    print("seconds a step of best over others: median (5 to 95 %; least to most)")
    print(f"  over the bound, all: {spread([each.behind('lower-bound') for each in judged])}")
    for device in DEVICES:
        for speed in sorted({each.metres_per_second for each in journeys}):
            some = [each for each in journeys if (each.device, each.metres_per_second) == (device, speed)]
            means = {name: fmean(each.handovers[name] for each in some) for name in ("best", "sticky")}
            paused, paused_188 = (
                fmean(each) for each in zip(*((j.paused["best"], j.paused_188) for j in some), strict=True)
            )
            print(
                f"  {device:<4} {speed:>4} m/s: bound {spread([each.behind('lower-bound') for each in some])}, handovers "
                f"{means['best']:.1f} (sticky {means['sticky']:.1f}), paused {paused:.1%}, with 188 MB {paused_188:.1%}"
            )
    for name in RIVALS:
        print(f"  over {name:<13} {spread([each.behind(name) for each in judged])}")
    worst = [max(each.behind(name) for name in RIVALS) for each in judged]
    within = sum(ratio <= 1.03 for ratio in worst) / len(worst)
    print(f"  over the best of the others: within 3 % in {within:.1%}, worst {max(worst):.3f}")
    by_key = {(each.seed, each.device, each.metres_per_second): each for each in journeys}
    for fast, slow in TWICE.items():
        for name in ("best", "pipedream-e", "edgemove"):
            ratios = [
                by_key[seed, device, slow].steps[name] / each.steps[name]
                for (seed, device, speed), each in by_key.items()
                if speed == fast
            ]
            print(f"  {name}, {fast:g} over {slow:g} m/s: {spread(ratios)}")


def report_foresight(profile: Profile, sites: Sequence[Site], paths: int, seconds: float) -> list[dict[str, float]]:
    """Print what twice the speed costs `best`, and one that knows the path. Returns the ratios of each path."""
    found = []
    for seed in range(paths):
        steps = {}
        for speed in (10.0, 20.0):
            world = world_of(profile, sites, seed, speed, seconds)
            (run,) = simulate_moves(world, ["best"], seed)
            steps[speed] = run.steps, most_steps(world)
        (slow, most_slow), (fast, most_fast) = steps[10.0], steps[20.0]
        found.append({"best": slow / fast, "foresight": most_slow / most_fast, "best over foresight": most_fast / fast})
    print("TX2, seconds a step: median (5 to 95 %; least to most)")
    for name, what in FORESIGHT_RATIOS.items():
        print(f"  {what}: {spread([each[name] for each in found])}")
    return found


def main() -> None:
    """Parse, simulate, print, and write the figures if asked to."""
    parser = benchmark_parser("planning.moving", "A device that moves.")
    parser.add_argument("sites", type=FilePath, help="CSV of the EUA data set")
    parser.add_argument("profiles", type=FilePath, help="folder of paper 000's tables")
    parser.add_argument("--paths", type=int, default=10, help="how many (default: 10)")
    parser.add_argument("--minutes", type=float, default=30.0, help="length of each (default: 30)")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="what to simulate (default: all)")
    arguments = parser.parse_args()
    sites, seconds = load_sites(arguments.sites), 60.0 * arguments.minutes
    figures: dict[str, object] = {}
    if "paths" in arguments.parts:
        journeys = [
            journey(seed, device, speed, vgg19_profile(arguments.profiles, device), sites, seconds)
            for device in DEVICES
            for speed in sorted({*SPEEDS, *TWICE})
            for seed in range(arguments.paths)
        ]
        report_paths(journeys)
        figures["journeys"] = journeys
    if "foresight" in arguments.parts:
        profile = vgg19_profile(arguments.profiles, "TX2")
        figures["foresight"] = report_foresight(profile, sites, arguments.paths, seconds)
    if "paper" in arguments.parts:
        figures["paper"] = report_paper(vgg19_profile(arguments.profiles, "TX2"), sites, arguments.paths, 2.0 * seconds)
    if "calm" in arguments.parts:
        figures["calm"] = report_calm()
    write_json(arguments.json, "moving", **figures)


if __name__ == "__main__":
    main()
