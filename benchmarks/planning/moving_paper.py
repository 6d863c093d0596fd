"""Table 1 of paper 003, in the simulator: profiles whose edge-only time has the paper's ratio to device-cloud.

The paper says neither how long a step takes on its phone, nor its rates. So a profile has the shape of paper 000's table of
VGG19 on a TX2, features and gradients of 32 bits, K = 1 (two batches in the pipeline), and 1 Gbit/s (WiFi 6); the pace of the
trainers is chosen, and the pace of the device is fitted to the ratio of edge-only to device-cloud. All else is a result.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.planning.moving_paths import random_path
from benchmarks.rivals.moving import Backbone, Site, World, simulate_moves
from edge_agent.planning import Profile, Question, SearchSpace
from edge_agent.planning.candidates import stacked_conditions
from edge_agent.planning.families.pair import Pairs, best_pairs

WALK = 1.4
NETWORK = Backbone(1e9, 1e9)
POLICIES = ("best", "edgemove", "pipedream-e", "device-cloud", "edge-only", "lower-bound")


@dataclass(frozen=True)
class Row:
    """A model of Table 1."""

    name: str
    cloud_ratio: float
    """Ratio of edge-only to device-cloud."""
    pipedream_ratio: float
    edgemove_ratio: float
    trainer_pace: float
    """Times of the trainers over those of paper 000's table."""


TABLE_1 = (Row("VGG-16, CIFAR-10", 1.17, 1.58, 2.38, 0.3), Row("ResNet-50, CINIC-10", 1.54, 1.90, 2.36, 0.7))


@dataclass(frozen=True)
class Paper:
    """Ratios of edge-only to each policy, one a path."""

    name: str
    ratios: dict[str, list[float]]


def fitted(shape: Profile, row: Row) -> Pairs:
    """Return the layouts of the profile whose device has the pace that gives the ratio of edge-only to device-cloud."""
    trainer = shape.with_worker(shape.workers[1].slowed(row.trainer_pace))
    trainer = replace(trainer, max_staleness=1, min_bits=None)
    low, high = 1e-3, 1e3
    for _ in range(60):
        pace = (low * high) ** 0.5
        pairs = _pairs(trainer, pace)
        low, high = (pace, high) if _cloud_ratio(pairs) < row.cloud_ratio else (low, pace)
    return _pairs(trainer, high)


def _pairs(profile: Profile, pace: float) -> Pairs:
    return best_pairs(Question(profile.with_worker(profile.workers[0].slowed(pace)), SearchSpace((32,))))


def _cloud_ratio(pairs: Pairs) -> float:
    at = stacked_conditions(*(np.array([each]) for each in (1e9, 1e9, NETWORK.cloud_round_trip_seconds, 1.0)))
    alone = pairs.alone()
    assert alone is not None
    return alone[1] / float(pairs.with_each(at)[1][0])


def report_paper(shape: Profile, sites: Sequence[Site], paths: int, seconds: float) -> list[Paper]:
    """Simulate both models on paths at walking speed, print the ratios, and return them."""
    found = []
    for row in TABLE_1:
        pairs, ratios = fitted(shape, row), {name: list[float]() for name in POLICIES}
        for seed in range(paths):
            world = World(pairs, sites, random_path(random.Random(seed), sites, WALK, seconds), NETWORK)
            steps = {run.policy: run.steps for run in simulate_moves(world, POLICIES, seed)}
            for name in POLICIES:
                ratios[name].append(steps[name] / steps["edge-only"])
        found.append(Paper(row.name, ratios))
        expected = {"edgemove": row.edgemove_ratio, "pipedream-e": row.pipedream_ratio, "device-cloud": row.cloud_ratio}
        print(f"{row.name}: edge-only takes so many times as long as")
        for name, each in ratios.items():
            paper = f"; the paper has {expected[name]}" if name in expected else ""
            print(f"  {name:<13} {np.median(each):.2f} ({min(each):.2f} to {max(each):.2f}){paper}")
        for other in ("edgemove", "device-cloud", "pipedream-e"):
            each = [one / two for one, two in zip(ratios["best"], ratios[other], strict=True)]
            print(f"  best over {other:<13} {np.median(each):.2f} ({min(each):.2f} to {max(each):.2f})")
    return found
