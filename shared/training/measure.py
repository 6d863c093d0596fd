"""How long a stage takes, measured alone: what a profile's T1 and T3 are made of."""

import time
from collections.abc import Callable

import torch

from shared.model.spec import TensorSpec
from shared.training.device import synchronise
from shared.training.policies import Replay
from shared.training.stage import Stage

GRADIENT_SCALE = 1e-6
"""Made-up gradients are small, so that the weights stay finite while they are measured with."""


def measure_stage(stage: Stage, inputs: TensorSpec, *, input_gradient: bool, repeats: int) -> list[float]:
    """Seconds of each of `repeats` steps, forward, backward and update on made-up inputs, after one that is not counted.

    input_gradient: whether the error gradient at the inputs is wanted, as in the cloud.
    """
    return timed(stage_step(stage, inputs, input_gradient=input_gradient), repeats)


def stage_step(stage: Stage, inputs: TensorSpec, *, input_gradient: bool) -> Callable[[], None]:
    """What does one such step."""
    example = inputs.example()

    def step() -> None:
        graph = stage.forward(0, example, input_gradient=input_gradient)
        stage.backward(graph, torch.full_like(graph.output, GRADIENT_SCALE))
        stage.update(0)
        synchronise(stage.device)

    return step


def measure_replay(stage: Stage, inputs: TensorSpec, *, repeats: int) -> list[float]:
    """The same for the edge under staleness: forward, then replay, backward and update (paper 000, 4.4)."""
    example, policy = inputs.example(), Replay(stage)

    def step() -> None:
        feature = policy.forward(0, example, alone=False)
        if policy.needs_gradients:
            policy.backward(0, torch.full_like(feature, GRADIENT_SCALE))
        synchronise(stage.device)

    return timed(step, repeats)


def timed(work: Callable[[], object], repeats: int) -> list[float]:
    """Seconds of each of `repeats` calls, after one that is not counted."""
    return [seconds_of(work) for _ in range(repeats + 1)][1:]


def seconds_of(work: Callable[[], object]) -> float:
    """Seconds of one call."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started
