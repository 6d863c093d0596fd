"""The models and recipes of disturbed runs, and the weights with which each ends where nothing disturbs it."""

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from tests.chaos.placements import BATCH_SIZE, Shared, draw, three_tiers, two_parts
from tests.support.plain import plain_experiment, plain_loop
from tests.support.plain_tiles import plain_tiles_state
from tests.support.running import edge_config

STEPS = 80
EXPERIMENT = [
    'data.train={factory="tests.support.samples:FlatDigits"}',
    'data.test={factory="tests.support.samples:FlatDigits"}',
    f"training.max_steps={STEPS}",
    f"data.batch_size={BATCH_SIZE}",
    "compute.threads=1",
    'compute.device="cpu"',
]
PERCEPTRON = ('model.factory="shared.model.zoo:mlp"', "model.kwargs={depth=4, hidden=128}")
SKIPPING = ('model.factory="tests.support.models.several:SkippingPerceptron"',)
OVERFLOWING = (
    'model.factory="tests.support.models.overflowing:overflowing"',
    "model.kwargs={block=1, forwards=[11, 37, 38, 62]}",
)
BY_BLOCK = 'training.optimizer={name="adamw", learning_rate=0.003, clip_norm=1.0}'
TOGETHER = 'training.optimizer={name="adamw", learning_rate=0.003, clip_norm=0.3, clip="model"}'
NAMED = 'training.optimizer={name="tests.support.models.optimizers:Nadam", learning_rate=0.003}'
CYCLE = 'training.schedule={name="onecycle"}'
OF_TWO_BATCHES, BIASES = "training.accumulate_batches=2", 'model.learns=["*bias"]'


class Variety(NamedTuple):
    """A model, and the way of its updates."""

    flags: tuple[str, ...]
    may_be_divided: bool = True
    """False where one process cannot yet run what workers share."""
    has_stateless: bool = True
    """False where every trainer has a state."""


VARIETIES = (
    Variety((*PERCEPTRON, TOGETHER, OF_TWO_BATCHES)),
    Variety((*PERCEPTRON, BY_BLOCK)),
    Variety((*PERCEPTRON, BY_BLOCK, BIASES)),
    Variety((*PERCEPTRON, TOGETHER, OF_TWO_BATCHES, BIASES)),
    Variety((*SKIPPING, BY_BLOCK), may_be_divided=False),
    Variety((*OVERFLOWING, BY_BLOCK, 'training.precision="fp16"'), has_stateless=False),
    Variety((*SKIPPING, TOGETHER, OF_TWO_BATCHES), may_be_divided=False),
    Variety((*PERCEPTRON, NAMED, CYCLE)),
)
"""Varieties of the runs by turns: block by block after every batch, and all blocks clipped together after two; of all
parameters, and of few beside a base that stays as it is, as with adapters; with several tensors between blocks; in float16,
where some gradients overflow; and by an optimizer named by its class, whose momentum goes up and down."""


class Expected(NamedTuple):
    """The weights of an undisturbed run with K = 0; with more only the order of events decides them."""

    at: dict[int, dict[str, Tensor]]
    """Weights at the end of each epoch and of the run, by the steps done, which are those of the evaluations."""
    losses: dict[int, float]
    """Mean loss of the steps until each of these since the one before."""
    divided: dict[str, Tensor]
    """Weights where workers share blocks."""
    tiers: dict[str, Tensor]
    """Weights where three tiers do."""


def expected_states(folder: Path) -> tuple[Expected, ...]:
    """By one process each, for each of `VARIETIES`."""
    torch.set_num_threads(1)
    return tuple(
        Expected(
            *_whole(variety),
            *(_shared_state(folder, variety, shared, names) for shared, names in SHARED.items()),
        )
        for variety in VARIETIES
    )


def _whole(variety: Variety) -> tuple[dict[int, dict[str, Tensor]], dict[int, float]]:
    states, means, losses = dict[int, dict[str, Tensor]](), dict[int, float](), list[float]()
    chain, recipe, _, loader, steps = plain_experiment(edge_config(*EXPERIMENT, *variety.flags))

    def done(step: int, loss: float) -> None:
        losses.append(loss)
        if (count := step + 1) == steps or count % loader.steps_per_epoch == 0:
            states[count] = {name: tensor.clone() for name, tensor in chain.module.state_dict().items()}
            means[count] = sum(losses) / len(losses)
            losses.clear()

    plain_loop(chain, recipe, ((each.step, each.inputs, each.labels) for each in loader.iterate(0, steps)), done)
    return states, means


SHARED: Mapping[Shared, tuple[str, ...]] = {two_parts: ("near",), three_tiers: ("near", "far")}
"""The trainers with which the weights of each are computed: the same with any."""


def _shared_state(folder: Path, variety: Variety, shared: Shared, names: tuple[str, ...]) -> dict[str, Tensor]:
    if not variety.may_be_divided:
        return {}
    file = folder / "shared.json"
    file.write_text(json.dumps(draw(random.Random(0), names, shared)))
    trainers = ", ".join(f'{{name="{name}", address="127.0.0.1:1"}}' for name in names)
    placed = (f"placement.file={file}", f"trainers=[{trainers}]", f"privacy.inputs_to={json.dumps(names)}")
    return plain_tiles_state(edge_config(*EXPERIMENT, *variety.flags, *placed))
