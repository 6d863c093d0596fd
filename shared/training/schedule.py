"""The learning rate as a pure function of the recipe and the step, so that both sides agree without talking."""

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable
from functools import cache, lru_cache
from typing import Any

from shared.errors import ModelError
from shared.factory import Allowed, load_factory
from shared.foreign import described, foreign_code
from shared.registry.optimizers import base_rates
from shared.training.recipe import Recipe, ScheduleConfig

_LEAST_FALL = 1e-8
"""A rate that would fall by less stays, as torch's `eps` has it."""
_TRIED_STEPS = 1000
"""Number of steps, spread over the training, for which a function of the user's is tried before it."""


def learning_rate(recipe: Recipe, step: int, group: int = 0, drops: int = 0) -> float:
    """Learning rate of `step` (from 0) for a group of parameters; 0 is that of those in none of `optimizer.groups`.

    Through the warm-up it rises linearly from 1/warmup_steps of the full value, reaching it at the warm-up's last step;
    then the schedule says, its position counted from step 0. With `every = "epoch"` it is the same all through an
    epoch. drops: times that "plateau" has lowered it. Raises ModelError where a function of the user's fails.
    """
    base = base_rates(recipe.optimizer)[group]
    schedule = recipe.schedule
    if schedule.name == "plateau":
        return _lowered(base, schedule.factor, schedule.min, drops)
    if schedule.name == "onecycle":
        first = base / schedule.div_factor
        return _in_cycle(schedule, step, recipe.total_steps, (first, base, first / schedule.final_div_factor))
    return base * _factor(recipe, step)


def set_rates(groups: Iterable[dict[str, Any]], recipe: Recipe, step: int, drops: int = 0) -> None:
    """Set the learning rate of an optimizer's groups for a step, and the momentum where the schedule changes it too.

    drops: see `learning_rate`.
    """
    cycles = recipe.schedule.name == "onecycle" and recipe.schedule.cycle_momentum
    for place, group in enumerate(groups):
        group["lr"] = learning_rate(recipe, step, place, drops)
        if cycles:
            _set_momentum(group, recipe, step)


def check_schedule(recipe: Recipe, allowed: Allowed | None) -> None:
    """Refuse a function of the user's that is not allowed, or that gives no finite factor. Raises ModelError.

    allowed: see `load_factory`. It is tried at many steps, and not at all of them.
    """
    if ":" not in (name := recipe.schedule.name):
        return
    load_factory(name, key="training.schedule", allowed=allowed)
    last = recipe.total_steps - 1
    steps = sorted({last * place // _TRIED_STEPS for place in range(_TRIED_STEPS + 1)})
    rates = {step: learning_rate(recipe, step) for step in steps}
    if any(learning_rate(recipe, step) != rates[step] for step in reversed(steps)):
        raise ModelError(
            f"schedule {name!r} gives another factor for the same step when it is asked again; every worker asks for itself, "
            "so the step alone may decide"
        )


@lru_cache(maxsize=64)
def _lowered(rate: float, factor: float, least: float, drops: int) -> float:
    """A rate after so many falls, by the operations of torch's ReduceLROnPlateau."""
    for _ in range(drops):
        lower = max(rate * factor, least)
        if rate - lower <= _LEAST_FALL:
            break  # nor do later ones change it
        rate = lower
    return rate


def _factor(recipe: Recipe, step: int) -> float:
    schedule = recipe.schedule
    if step < schedule.warmup_steps:
        return (step + 1) / schedule.warmup_steps
    unit_steps = recipe.steps_per_epoch if schedule.every == "epoch" else 1
    position = step // unit_steps
    period = schedule.period or math.ceil(recipe.total_steps / unit_steps)
    match schedule.name:
        case "constant":
            return 1.0
        case "multistep":
            return schedule.gamma ** bisect_right(schedule.milestones, position)
        case "exponential":
            return schedule.gamma**position
        case "cosine":
            phase = min(position / period, 1.0)
            return schedule.floor + (1.0 - schedule.floor) * (1.0 + math.cos(math.pi * phase)) / 2.0
        case "linear":
            length = max(period - schedule.warmup_steps / unit_steps, 1.0)
            left = min(max((period - position) / length, 0.0), 1.0)
            return schedule.floor + (1.0 - schedule.floor) * left
    return _own_factor(schedule.name, step, recipe.total_steps)


def _own_factor(name: str, step: int, total_steps: int) -> float:
    def refusal(cause: BaseException) -> ModelError:
        return ModelError(f"schedule {name!r} failed at step {step} of {total_steps} with {described(cause)}")

    with foreign_code(refusal):
        factor = float(_function(name)(step, total_steps))
    if not (math.isfinite(factor) and factor >= 0):
        raise ModelError(
            f"schedule {name!r} gives the factor {factor} at step {step} of {total_steps}; it must be a finite number of 0 "
            "or more"
        )
    return factor


@cache
def _function(name: str) -> Callable[..., Any]:
    """The user's function; `check_schedule` has found it to be allowed."""
    return load_factory(name)


def _in_cycle(schedule: ScheduleConfig, step: int, total_steps: int, values: tuple[float, float, float]) -> float:
    """A value of one cycle, by the operations of torch's OneCycleLR (Smith and Topin 2017, arXiv 1708.07120).

    values: the first, that after the rise, and the last.
    """
    first, top, last = values
    ends = [schedule.pct_start * total_steps - 1, total_steps - 1]
    phases = [(first, top), (top, last)]
    if schedule.three_phase:
        ends.insert(1, 2 * schedule.pct_start * total_steps - 2)
        phases[1:] = [(top, first), (first, last)]
    phase = next((place for place, end in enumerate(ends) if step <= end), len(ends) - 1)
    (start, stop), begin, end = phases[phase], ends[phase - 1] if phase else 0, ends[phase]
    part = min((step - begin) / (end - begin), 1.0) if end > begin else 1.0
    if schedule.anneal_strategy == "linear":
        return (stop - start) * part + start
    return stop + (start - stop) / 2.0 * (math.cos(math.pi * part) + 1)


def _set_momentum(group: dict[str, Any], recipe: Recipe, step: int) -> None:
    """Set the momentum of a group where its optimizer has one: it is lowest where the rate is highest."""
    schedule = recipe.schedule
    values = schedule.max_momentum, schedule.base_momentum, schedule.max_momentum
    if group.get("betas"):
        group["betas"] = (_in_cycle(schedule, step, recipe.total_steps, values), *group["betas"][1:])
    elif group.get("momentum"):
        group["momentum"] = _in_cycle(schedule, step, recipe.total_steps, values)
