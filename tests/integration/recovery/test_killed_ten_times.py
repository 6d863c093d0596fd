"""A run that is killed ten times has the plain loop's bits and rows, whatever its recipe keeps from step to step."""

import pytest

from tests.integration.training.test_loss_arguments import WEIGHTED
from tests.integration.training.test_named_optimizers import CHOSEN
from tests.integration.training.test_plateau import PLATEAU
from tests.integration.training.test_rates import CYCLE, OWN
from tests.support import plain_history
from tests.support.experiments import MODELS, OPTIMIZERS
from tests.support.killed_ten_times import train_with_kills
from tests.support.plain import assert_same_bits, plain_average, plain_state
from tests.support.running import edge_config

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.slow]

STEPS = 50  # of 22 in an epoch
TRAINING = [
    *MODELS["mlp"],
    'data.train={factory="tests.support.samples:FlatDigits"}',
    'data.test={factory="tests.support.samples:FlatDigits", kwargs={split="test"}}',
    "data.batch_size=64",
    "training.epochs=3",
    f"training.max_steps={STEPS}",
    "training.evaluate_every_steps=5",
    "training.evaluate_every_epochs=0",
]
QUICK_STEPS = 'training.optimizer={name="sgd", learning_rate=0.7, momentum=0.5}'
"""So large that losses go up and down."""
RECIPES = {
    **{name: [f"training.optimizer={optimizer}"] for name, optimizer in OPTIMIZERS.items()},
    "by class": [CHOSEN],
    "linear": ['training.schedule={name="linear", every="step", warmup_steps=5}', QUICK_STEPS],
    "onecycle": [CYCLE, QUICK_STEPS],
    "plateau": [PLATEAU, QUICK_STEPS],
    "own schedule": [f'training.schedule={{name="{OWN}", warmup_steps=2}}', QUICK_STEPS],
    "loss": [WEIGHTED],
    "average": ["training.ema={decay=0.9}"],
    "best": ["training.keep_best={}", QUICK_STEPS],
}
STOPPED = {*OPTIMIZERS} - {"adamw", "adafactor"}
"""Optimizers whose runs are stopped once in `test_resuming.py`, and are killed ten times by `make test-full` alone."""
WITHOUT_ROWS = {
    "several batches": ["training.accumulate_batches=3"],
    "mean over labels": [
        "training.accumulate_batches=3",
        'training.mean="token"',
        'data.train={factory="tests.support.samples:PartlyLabelled"}',
    ],
    "sixteen bits": ['training.precision="bf16"'],
}
"""Recipes with which the plain loop evaluates at other steps, or in other numbers."""


@pytest.mark.parametrize(
    "recipe", [pytest.param(recipe, marks=pytest.mark.full if recipe in STOPPED else ()) for recipe in RECIPES]
)
def test_a_recipe_goes_on_as_if_nothing_had_been(recipe, tmp_path):
    flags = [*TRAINING, *RECIPES[recipe]]
    config = edge_config(*flags)
    result = train_with_kills(flags, STEPS, tmp_path, seed=recipe)
    rows, state = plain_history.plain_run(config, range(5, STEPS + 1, 5).__contains__)
    assert (len({row.learning_rate for row in rows}) > 1) == any("schedule" in flag for flag in RECIPES[recipe])
    assert plain_history.of(result.history) == rows
    assert_same_bits(state, result.module.state_dict())
    if recipe == "average":
        assert_same_bits(plain_average(config), dict(result.average))
    if recipe == "best":
        best = min((row for row in rows if row.test_loss is not None), key=lambda row: row.test_loss).step
        assert best < STEPS
        assert_same_bits(plain_state(edge_config(*flags, f"training.max_steps={best}")), dict(result.best))


@pytest.mark.parametrize("recipe", WITHOUT_ROWS)
def test_its_weights_are_those_of_the_plain_loop(recipe, tmp_path):
    flags = [*TRAINING, *WITHOUT_ROWS[recipe]]
    result = train_with_kills(flags, STEPS, tmp_path, seed=recipe)
    assert_same_bits(plain_state(edge_config(*flags)), result.module.state_dict())
