"""The curvature in which training goes on where gradients come late: what the correction of staleness is for.

In a loss of one weight and of curvature c, momentum converges if c times the learning rate is below 2 (1 + momentum). Five
steps of lateness bring this bound down to a 180th, and to a seventh where there is no momentum. All bounds below are by the
roots of the recurrence.
"""

from collections import deque
from typing import Any

import pytest
import torch
from torch import nn

from shared.model.chain import build_chain
from shared.registry import OptimizerConfig
from shared.training.policies import KeptGraph, Replay
from shared.training.recipe import Recipe, ScheduleConfig
from shared.training.stage import lone_stage

RATE = 0.1
STEPS = 2000


def converges(curvature: float, momentum: float, staleness: int, correction: str, waits: str = "backward") -> bool:
    """Train one weight, whose loss is curvature times its square over 2, and tell whether it gets to nothing.

    waits: what comes late: the backward, or the update alone, as where one norm clips all blocks.
    """
    module = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Identity())
    nn.init.ones_(module[0].weight)
    recipe = Recipe(
        optimizer=OptimizerConfig(learning_rate=RATE, momentum=momentum),
        schedule=ScheduleConfig(),
        loss="mse",
        seed=0,
        steps_per_epoch=STEPS,
        total_steps=STEPS,
        staleness_correction=correction,
    )
    chain, one = build_chain(module, torch.ones(1, 1)), torch.ones(1, 1)
    stage = lone_stage(chain, 0, 1, recipe, torch.device("cpu"))
    policy = (Replay if staleness and waits == "backward" else KeptGraph)(stage)
    waiting: deque[tuple[int, Any]] = deque()
    for step in range(STEPS):
        (feature,) = policy.forward(step, (one,))
        if waits == "update":
            policy.backward(step, (curvature * feature,))
        waiting.append((step, curvature * feature if waits == "backward" else stage.held.take_gradients([0])))
        if len(waiting) > staleness:
            oldest, gradient = waiting.popleft()
            if waits == "update":
                stage.held.put_back(gradient)
            else:
                policy.backward(oldest, (gradient,))
            stage.update(oldest, is_late=staleness > 0)
        if feature.abs() > 100:
            return False
    return bool(feature.abs() < 0.1)


@pytest.mark.parametrize(
    ("momentum", "staleness", "correction", "bound"),
    [
        (0.9, 0, "none", 37.8),
        pytest.param(0.9, 0, "prediction", 37.8, marks=pytest.mark.slow),
        (0.9, 1, "none", 1.0),
        (0.9, 1, "prediction", 25.4),
        (0.9, 5, "none", 0.213),
        (0.9, 5, "prediction", 1.92),
        pytest.param(0.9, 16, "none", 0.0746, marks=pytest.mark.slow),
        pytest.param(0.9, 16, "prediction", 0.242, marks=pytest.mark.slow),
        (0.0, 0, "prediction", 2.0),
        (0.0, 5, "none", 0.285),
        (0.0, 5, "prediction", 1.92),
    ],
)
def test_training_is_stable_up_to_a_curvature_which_the_correction_raises(momentum, staleness, correction, bound):
    """bound: of curvature times learning rate over 1 - momentum, which is what all gradients together move a weight by."""
    curvature = bound * (1 - momentum) / RATE
    assert converges(curvature * 0.9, momentum, staleness, correction)
    assert not converges(curvature * 1.15, momentum, staleness, correction)


@pytest.mark.parametrize(("correction", "bound"), [("none", 0.213), ("prediction", 1.92)])
def test_so_it_is_where_the_update_alone_comes_late(correction, bound):
    curvature = bound * (1 - 0.9) / RATE
    assert converges(curvature * 0.9, 0.9, 5, correction, "update")
    assert not converges(curvature * 1.15, 0.9, 5, correction, "update")
