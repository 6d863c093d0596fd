"""The learning rate as a pure function of the recipe and the step, so that both sides agree without talking."""

import math
from bisect import bisect_right

from shared.registry.optimizers import base_rates
from shared.training.recipe import Recipe


def learning_rate(recipe: Recipe, step: int, group: int = 0) -> float:
    """Learning rate of `step` (from 0) for a group of parameters; 0 is that of those in none of `optimizer.groups`.

    Through the warm-up it rises linearly from 1/warmup_steps of the full value, reaching it at the warm-up's last step;
    then the schedule says, its position counted from step 0. With `every = "epoch"` it is the same all through an
    epoch.
    """
    return base_rates(recipe.optimizer)[group] * _factor(recipe, step)


def _factor(recipe: Recipe, step: int) -> float:
    schedule = recipe.schedule
    if step < schedule.warmup_steps:
        return (step + 1) / schedule.warmup_steps
    unit_steps = recipe.steps_per_epoch if schedule.every == "epoch" else 1
    position = step // unit_steps
    match schedule.name:
        case "constant":
            return 1.0
        case "multistep":
            return schedule.gamma ** bisect_right(schedule.milestones, position)
        case "exponential":
            return schedule.gamma**position
        case "cosine":
            period = schedule.period or math.ceil(recipe.total_steps / unit_steps)
            phase = min(position / period, 1.0)
            return schedule.floor + (1.0 - schedule.floor) * (1.0 + math.cos(math.pi * phase)) / 2.0
