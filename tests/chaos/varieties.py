"""The models, recipes and data of disturbed runs, and the weights with which each ends where nothing disturbs it."""

import json
import math
import random
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from edge_agent.training.history import HistoryRow
from tests.chaos.faults import Planned, plan
from tests.chaos.placements import BATCH_SIZE, Shared, draw, three_tiers, two_parts
from tests.support.plain import plain_experiment
from tests.support.plain_history import PlainRow, plain_run
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


SAMPLES = "tests.support.samples"
EVERY_TEN_STEPS = "training.evaluate_every_steps=10"
EVALUATED = (
    EVERY_TEN_STEPS,
    f'data.test={{factory="{SAMPLES}:FewDigits", kwargs={{count=64}}}}',
)
EARLY_STOP, PATIENCE, MIN_DELTA = "early stop", 1, 0.1
RECIPES = {
    "average": ("training.ema={decay=0.9}",),
    "plateau": ('training.schedule={name="plateau", factor=0.6, patience=0, threshold=0.2}',),
    EARLY_STOP: (f'training.early_stop={{metric="loss", patience={PATIENCE}, min_delta={MIN_DELTA}}}',),
}
DATA = {
    "sampler": (
        f'data.train={{factory="{SAMPLES}:FewDigits", kwargs={{count=384}}}}',
        'data.sampler="tests.support.batches:rare_first"',
    ),
    "sample weights": (
        f'data.train={{factory="{SAMPLES}:FewDigits", kwargs={{count=480}}}}',
        'data.sample_weights="tests.support.batches:mostly_small"',
    ),
    "worker processes": (f'data.train={{factory="{SAMPLES}:FewDigits", kwargs={{count=432}}}}', "data.workers=1"),
    "iterable set": ('data.train={factory="tests.support.iterated:DigitsInTurn"}', "data.steps_per_epoch=30"),
    "iterable set with a state": (
        'data.train={factory="tests.support.iterated:DigitsByState"}',
        "data.steps_per_epoch=30",
    ),
    "skipped samples": (f'data.train={{factory="{SAMPLES}:Torn", kwargs={{count=480}}}}', 'data.on_error="skip"'),
    "mean of tokens": (
        f'data.train={{factory="{SAMPLES}:PartlyLabelled", kwargs={{flat=true}}}}',
        'training.mean="token"',
        OF_TWO_BATCHES,
    ),
}
"""All but the last have several epochs in a run. Those of a set that is only iterated are as long as they are said to be."""
EXTRAS_SHARE = 0.5
"""Share of the runs that have extras: any of `RECIPES`, one of `DATA`, and evaluations that faults disturb."""


def draw_extras(seed: int, *, always: bool) -> tuple[str, ...]:
    """Draw the names of a run's extras, by dice of their own: nothing else that a seed draws depends on them."""
    dice = random.Random(f"extras of {seed}")
    if dice.random() >= EXTRAS_SHARE and not always:
        return ()
    return (*(name for name in RECIPES if dice.random() < 0.5), dice.choice([*DATA]))


def flags_of_extras(names: Collection[str]) -> tuple[str, ...]:
    """Return the flags of what was drawn; they come after those of the variety."""
    return tuple(flag for name in names for flag in (RECIPES | DATA)[name]) + (EVALUATED if names else ())


def plan_of_extras(seed: int, names: Collection[str]) -> list[Planned]:
    """Plan the death of an agent at one of the evaluations that its extras bring, by dice of its own."""
    return plan(random.Random(f"evaluating {seed}"), "evaluating", 1, 1) if names else []


class Expected(NamedTuple):
    """The outcome of an undisturbed run with K = 0; with more only the order of events decides it."""

    steps: int
    at: Mapping[int, Mapping[str, Tensor]]
    """Weights at each evaluation, by the steps done; the last one is at the end."""
    average: Mapping[str, Tensor]
    """Average of the weights; empty where the recipe has none."""
    rows: Sequence[PlainRow] | None
    """Rows of the history; None where workers share blocks, whose evaluations no loop here repeats."""


def end_of(rows: Iterable[PlainRow | HistoryRow]) -> int:
    """Return the step of the evaluation with which a run that may end early does; STEPS where none says so."""
    best, waited = math.inf, 0
    for row in rows:
        if row.test_loss is not None:
            is_better = row.test_loss < best - MIN_DELTA
            best, waited = (row.test_loss, 0) if is_better else (best, waited + 1)
        if waited == PATIENCE:
            return row.step
    return STEPS


def expected(flags: Sequence[str], *, ends_early: bool) -> Expected:
    """Train in one process where no worker shares a block. flags: of the variety, and of what else was drawn."""
    config = edge_config(*EXPERIMENT, *flags)
    experiment, every = plain_experiment(config), config.training.evaluate_every_steps
    per_epoch = experiment.loader.steps_per_epoch
    due = [*range(per_epoch, STEPS, per_epoch), *(range(every, STEPS, every) if every else ()), STEPS]
    evaluated = set(map(experiment.recipe.boundary_from, due))
    states, average = dict[int, dict[str, Tensor]](), dict[str, Tensor]()
    steps = end_of(plain_run(config, evaluated.__contains__)[0]) if ends_early else STEPS
    rows, _ = plain_run(config, evaluated.__contains__, states, average, steps)
    return Expected(steps, states, average, rows)


SHARED: Mapping[Shared, tuple[str, ...]] = {two_parts: ("near",), three_tiers: ("near", "far")}
"""The trainers with which the weights of each are computed: the same with any."""


def expected_shared(
    folder: Path, flags: Sequence[str], shared: Shared, rows: Sequence[HistoryRow], *, ends_early: bool
) -> Expected:
    """Train in one process where workers share blocks. rows: of the run, whose evaluations a plateau and an end follow."""
    names, file = SHARED[shared], folder / "shared.json"
    file.write_text(json.dumps(draw(random.Random(0), names, shared)))
    trainers = ", ".join(f'{{name="{name}", address="127.0.0.1:1"}}' for name in names)
    placed = (f"placement.file={file}", f"trainers=[{trainers}]", f"privacy.inputs_to={json.dumps(names)}")
    figures = {row.step: row.test_loss for row in rows if row.test_loss is not None}
    states, average = dict[int, dict[str, Tensor]](), dict[str, Tensor]()
    plain_tiles_state(edge_config(*EXPERIMENT, *flags, *placed), figures, states, average)
    return Expected(end_of(rows) if ends_early else STEPS, states, average, None)
