"""The judgement of a disturbed group: its members have the steps, the weights and the rows of an undisturbed one."""

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from safetensors.torch import load_file
from torch import Tensor

from edge_agent.training.history import read_history
from isthmus import EdgeConfig
from shared.training.step_log import merged_ranks
from tests.chaos.group_varieties import (
    BATCH_SIZE,
    FINISH,
    NAME,
    STEPS_OF_TRAINERS,
    flags_of_extras,
    member_flags,
)
from tests.chaos.run import Outcome, different
from tests.chaos.varieties import EARLY_STOP, STEPS
from tests.support.group_members import TookPart, group_state
from tests.support.running import edge_config

Ranks = Mapping[tuple[int, int, int], Sequence[int]]
"""Ranks whose gradients are in the weights, by step, block and slice."""


class Expected(NamedTuple):
    """The outcome of an undisturbed group with K = 0."""

    state: Mapping[str, Tensor]
    average: Mapping[str, Tensor]
    """Average of the weights; empty where the recipe has none."""


def loss_of(folder: Path, outcome: Outcome, ranks: Ranks, *, is_sliced: bool) -> str:
    """Judge what the members of a group have in the end; empty where nothing is lost."""
    size, extras, everybody = outcome.members, outcome.extras, range(outcome.members + outcome.joined)
    if missing := [rank for rank in everybody if not (_result(folder, rank) / "summary.json").exists()]:
        return f"members {missing} have no results ({folder})"
    ended = {json.loads((_result(folder, rank) / "summary.json").read_text())["steps"] for rank in everybody}
    steps = max(ended)
    if len(ended) > 1 or (EARLY_STOP not in extras and (steps == STEPS) == (FINISH in extras)):
        return f"members end after {sorted(ended)} steps ({folder})"
    if (
        outcome.staleness
    ):  # only the order of events decides the bits: all end with the same, no update without a member
        same = Expected(load_file(_result(folder, 0) / "model.safetensors"), {})
        return _lacks_ranks(ranks, range(size), steps, folder) or _differs(folder, same, everybody)
    asked_steps = steps if FINISH in extras else STEPS
    if outcome.joined:
        configs = _configs(range(size + 1), size, extras, asked_steps, is_sliced=is_sliced)
        return _differs(folder, _expected(configs, lambda step, one: ranks[step, *one]), everybody)
    loss = _differs(folder, _undisturbed(size, extras, asked_steps, is_sliced=is_sliced), everybody)
    if extras:
        configs = _configs(range(size), size, extras, STEPS, is_sliced=is_sliced)
        loss = loss or _wrong_samples(folder, size) or _wrong_best(folder, configs)
    return loss


@cache
def _undisturbed(size: int, extras: tuple[str, ...], steps: int, *, is_sliced: bool) -> Expected:
    """Return the outcome of an undisturbed group of so many, which is asked to do so many steps."""
    return _expected(_configs(range(size), size, extras, steps, is_sliced=is_sliced))


def _expected(configs: Sequence[EdgeConfig], took_part: TookPart | None = None) -> Expected:
    average = dict[str, Tensor]()
    return Expected(group_state(configs, took_part, averages=average), average)


def _configs(
    ranks: Iterable[int], size: int, extras: tuple[str, ...], steps: int, *, is_sliced: bool
) -> list[EdgeConfig]:
    addresses, last = {"near": "127.0.0.1:1"}, f"training.max_steps={steps}"
    return [
        edge_config(*member_flags(rank, size, addresses, is_sliced=is_sliced), *flags_of_extras(extras, rank), last)
        for rank in ranks
    ]


def ranks_by_slice(folder: Path) -> Ranks:
    """Read the ranks whose gradients are in the weights, by step, block and slice, from the logs of all trainers.

    Raises AssertionError where two trainers do not agree on a step.
    """
    found: dict[tuple[int, int, int], tuple[int, ...]] = {}
    for log in sorted((folder / STEPS_OF_TRAINERS).glob(f"*/{NAME}-group.steps")):
        found |= merged_ranks(log.read_text().splitlines())
    for step in {step for step, *_ in found}:
        different = {ranks for (at, *_), ranks in found.items() if at == step}
        assert len(different) == 1, f"step {step} is done by {different} at different trainers ({folder})"
    return found


def has_joined(rank: int, ranks: Ranks) -> bool:
    """Tell whether a rank takes part in any step."""
    return any(rank in of_slice for of_slice in ranks.values())


def _lacks_ranks(ranks: Ranks, members: Iterable[int], steps: int, folder: Path) -> str:
    """Tell of which updates a member has no part, or that steps are missing; empty where all have it in all."""
    if missing := set(range(steps)).difference(step for step, *_ in ranks):
        return f"steps {sorted(missing)} were not done ({folder})"
    lacking = sorted(at for at, of_slice in ranks.items() if not set(members) <= set(of_slice))
    return f"updates {lacking} are without a member ({folder})" if lacking else ""


def _result(folder: Path, rank: int) -> Path:
    return folder / f"member-{rank}-result"


def _differs(folder: Path, right: Expected, members: Iterable[int]) -> str:
    for rank in members:
        result = _result(folder, rank)
        for name, weights in (("model", right.state), ("ema", right.average)):
            if weights and (wrong := different(result / f"{name}.safetensors", weights)):
                return f"{result.name}: {wrong} ({folder})"
    return ""


def _wrong_samples(folder: Path, size: int) -> str:
    """Judge the samples in the rows of each member; empty where they are those of all steps, whoever was killed."""
    for rank in range(size):
        for row in read_history(_result(folder, rank)):
            if row.samples != row.step * BATCH_SIZE:
                return f"row {row.step} of member {rank} has {row.samples} samples ({folder})"
    return ""


def _wrong_best(folder: Path, configs: Sequence[EdgeConfig]) -> str:
    """Judge the best weights of each member; empty where they are those of the loop at its best evaluation."""
    for rank in range(len(configs)):
        result = _result(folder, rank)
        best = min(
            (row for row in read_history(result) if row.test_loss is not None), key=lambda row: row.test_loss or 0.0
        ).step
        training = configs[0].training.model_copy(update={"max_steps": best})
        state = group_state([config.model_copy(update={"training": training}) for config in configs])
        if wrong := different(result / "best.safetensors", state):
            return f"{result.name}: {wrong} of step {best} ({folder})"
    return ""
