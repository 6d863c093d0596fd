"""Times of stages, measured alone: T1 and T3 of a profile are made of them."""

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import torch

from shared.model.chain import Block
from shared.model.features import Features, FeatureSpecs, Gradients, Slots
from shared.model.snapshot import same_attributes
from shared.model.spec import is_differentiable
from shared.training import block_state
from shared.training.device import synchronise
from shared.training.policies import BackwardPolicy, KeptGraph
from shared.training.stage import Stage
from shared.training.step_seconds import StepSeconds

GRADIENT_SCALE = 1e-6
"""Made-up gradients are small, so that the weights stay finite while they are measured with."""


def measure_stage(
    stage: Stage,
    inputs: FeatureSpecs,
    *,
    input_gradient: bool,
    repeats: int,
    policy: type[BackwardPolicy] = KeptGraph,
    samples: int | None = None,
) -> list[StepSeconds]:
    """Seconds of each of `repeats` steps, forward, backward and update on made-up inputs, after one that is not counted.

    input_gradient: whether the error gradients at the inputs are wanted, as in the cloud. policy: the work between
    forward and backward, as a replay (paper 000, 4.4). samples: of the inputs; those of a batch if
    left out.
    """
    step = stage_step(stage, inputs, policy, input_gradient=input_gradient, samples=samples)
    return [step() for _ in range(repeats + 1)][1:]


def stage_step(
    stage: Stage,
    inputs: FeatureSpecs,
    policy: type[BackwardPolicy],
    *,
    input_gradient: bool,
    samples: int | None = None,
) -> Callable[[], StepSeconds]:
    """A function that does one step as `measure_stage` times it."""
    examples, waiting = _examples(inputs, samples), policy(stage, input_gradient=input_gradient)
    numbers = itertools.count()

    def step() -> StepSeconds:
        moments = [time.perf_counter()]

        def note() -> None:
            synchronise(stage.device)
            moments.append(time.perf_counter())

        features = waiting.forward(0, examples)
        note()
        if stage.gradients_return:
            waiting.backward(0, _made_up_gradients(features))
        note()
        if stage.gradients_return:
            stage.update(next(numbers), is_late=policy is not KeptGraph)
        note()
        return StepSeconds(*(late - early for early, late in itertools.pairwise(moments)))

    return step


@contextmanager
def untouched(blocks: Sequence[Block]) -> Iterator[None]:
    """Afterwards the blocks have the weights, buffers, modes and attributes that they have now."""
    saved = [{name: tensor.clone() for name, tensor in block_state.collect(block, None).items()} for block in blocks]
    try:
        with ExitStack() as attributes:
            for block in blocks:
                attributes.enter_context(same_attributes(block.module))
            yield
    finally:
        for block, tensors in zip(blocks, saved, strict=True):
            block_state.restore(block, None, None, tensors)


def timed(work: Callable[[], object], repeats: int) -> list[float]:
    """Seconds of each of `repeats` calls, after one that is not counted."""
    return [_seconds_of(work) for _ in range(repeats + 1)][1:]


def _seconds_of(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _examples(specs: FeatureSpecs, samples: int | None) -> Features:
    return tuple(spec.example(samples) for spec in specs)


def _made_up_gradients(features: Slots) -> Gradients:
    return tuple(
        None if tensor is None or not is_differentiable(tensor.dtype) else torch.full_like(tensor, GRADIENT_SCALE)
        for tensor in features
    )
