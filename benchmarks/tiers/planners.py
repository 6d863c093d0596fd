"""The pace of the planners of three tiers: 34 blocks and batches of 128, beside the algorithm of paper 004."""

import time
from dataclasses import dataclass

import numpy as np
from rich.table import Table

from benchmarks.tiers.linear_programme import every_division
from benchmarks.tiers.networks import ALEXNET, Layer, Network, Setting, document_of, profile_of
from benchmarks.tiers.phases import phases_of
from edge_agent.planner_names import BEST, HIERTRAIN
from edge_agent.planning import Question, SearchSpace, conditions_of, planned
from edge_agent.planning.families.tiers.bounds import Bounds
from edge_agent.planning.families.tiers.columns import columns_of
from edge_agent.planning.papers.hiertrain import eq12_seconds

BLOCKS, BATCH = 34, 128
SETTING = Setting({"edge": 8e9, "near": 12e9, "gpu": 500e9}, 5.0, 3.0, block_seconds=1e-4)


@dataclass(frozen=True)
class Pace:
    """Seconds of planning, and what came of it."""

    planner: str
    seconds: float
    evaluated: int
    """Divisions that were simulated or added up, or programmes that were solved."""
    step_seconds: float
    """Seconds of a step in the simulator, and of the last two in phases."""


def deep_network(blocks: int) -> Network:
    """Return a network of so many convolutions, with the sizes of AlexNet's between its first and its last."""
    draw, known = np.random.default_rng(0), ALEXNET.layers[1:5]
    middle = [known[int(index)] for index in draw.integers(len(known), size=blocks - 2)]
    named = [Layer(f"b{index}", one.operations, one.weights, one.outputs) for index, one in enumerate(middle)]
    return Network("deep", ALEXNET.inputs, (ALEXNET.layers[0], *named, ALEXNET.layers[-1]))


def paces() -> list[Pace]:
    """Time each planner once, with and without permission for inputs."""
    document = document_of(deep_network(BLOCKS), SETTING, BATCH)
    profile = profile_of(deep_network(BLOCKS), SETTING, BATCH)
    found = []
    for what, inputs_to in (("inputs stay", frozenset[str]()), ("inputs go", frozenset(profile.names[1:]))):
        for planner in (BEST, HIERTRAIN):
            begun = time.perf_counter()
            question = Question(profile, SearchSpace((8, 32), 0, inputs_to=inputs_to))
            plan = planned(question, planner)
            seconds = time.perf_counter() - begun
            phased = phases_of(question, plan.layout) if planner == HIERTRAIN else None
            step_seconds = plan.seconds_per_step if phased is None else phased[1]
            found.append(Pace(f"{planner}, {what}", seconds, plan.evaluated, step_seconds))
    begun = time.perf_counter()
    bounds = Bounds(profile, conditions_of(profile), 0)
    each = [columns_of(division, profile.names) for division in every_division(document)]
    least = min(float(eq12_seconds(bounds, one)[0]) for one in each)
    found.append(Pace("linear programme with rounding, inputs go", time.perf_counter() - begun, len(each), least))
    return found


def paces_table(found: list[Pace]) -> Table:
    """Tabulate them."""
    table = Table(
        "planner",
        "seconds",
        "evaluated",
        "step, s",
        title=f"{BLOCKS} blocks, batches of {BATCH}; hiertrain's steps in phases",
    )
    for pace in found:
        table.add_row(pace.planner, f"{pace.seconds:.2f}", f"{pace.evaluated:,}", f"{pace.step_seconds:.3f}")
    return table
