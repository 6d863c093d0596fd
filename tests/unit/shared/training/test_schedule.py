"""Schedules: rates and momenta of each step are those of the formulas, and those of torch."""

import math
import re
import warnings
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.optim import lr_scheduler

from shared.config.docstrings import docstring_of
from shared.errors import ModelError, NotAllowedError
from shared.registry import OptimizerConfig
from shared.training.recipe import Recipe, ScheduleConfig
from shared.training.schedule import check_schedule, learning_rate, set_rates

STEPS_PER_EPOCH = 3
EPOCHS = 12


def recipe(schedule: dict[str, Any], lr: float = 0.3, total_steps: int = STEPS_PER_EPOCH * EPOCHS) -> Recipe:
    return Recipe(
        optimizer=OptimizerConfig(learning_rate=lr),
        schedule=ScheduleConfig(**schedule),
        loss="cross_entropy",
        seed=0,
        steps_per_epoch=STEPS_PER_EPOCH,
        total_steps=total_steps,
    )


def torch_rates(make_scheduler, lr: float, count: int) -> list[float]:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=lr)
    scheduler = make_scheduler(optimizer)
    rates = []
    for _ in range(count):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


@given(
    name=st.sampled_from(["cosine", "linear", "exponential"]),
    every=st.sampled_from(["step", "epoch"]),
    period=st.none() | st.integers(1, 50),
    warmup=st.integers(0, 8),
    step=st.integers(0, 60),
)
def test_the_rates_are_those_of_the_formulas_that_the_key_says(name, every, period, warmup, step):
    said = " ".join((docstring_of(ScheduleConfig, "name") or "").split())
    formula = re.search(rf'"{name}" ((?:floor|gamma).*?)(?:;|, with )', said)
    length = re.search(r"L = (.*?\))", said)
    assert formula is not None, "each has its formula"
    assert length is not None, "it says what L is"
    unit = STEPS_PER_EPOCH if every == "epoch" else 1
    values = {"x": step // unit, "floor": 0.1, "gamma": 0.9, "pi": math.pi, "cos": math.cos, "min": min, "max": max}
    values |= {"period": period or math.ceil(STEPS_PER_EPOCH * EPOCHS / unit), "warmup": warmup / unit}
    factor = eval(formula[1], values | {"L": eval(length[1], values)})  # noqa: S307 - our own text
    keys = {"gamma": 0.9} if name == "exponential" else {"period": period, "floor": 0.1}
    told = recipe({"name": name, "every": every, "warmup_steps": warmup, **keys}, lr=1.0)
    assert learning_rate(told, step) == pytest.approx((step + 1) / warmup if step < warmup else factor)


SCHEDULES = [
    (
        {"name": "multistep", "milestones": (2, 3, 7), "gamma": 0.5},
        lambda o: lr_scheduler.MultiStepLR(o, [2, 3, 7], 0.5),
    ),
    ({"name": "exponential", "gamma": 0.8}, lambda o: lr_scheduler.ExponentialLR(o, 0.8)),
    ({"name": "cosine", "floor": 0.1}, lambda o: lr_scheduler.CosineAnnealingLR(o, EPOCHS, eta_min=0.1 * 0.3)),
    ({"name": "constant"}, lambda o: lr_scheduler.ConstantLR(o, factor=1.0)),
    ({"name": "linear", "floor": 0.1}, lambda o: lr_scheduler.LinearLR(o, 1.0, 0.1, EPOCHS)),
]


@pytest.mark.parametrize(("schedule", "make_scheduler"), SCHEDULES)
def test_by_epoch_the_rate_is_torchs_for_each_step_of_the_epoch(schedule, make_scheduler):
    told = recipe(schedule)
    expected = torch_rates(make_scheduler, 0.3, EPOCHS)
    for step in range(told.total_steps):
        assert learning_rate(told, step) == pytest.approx(expected[step // STEPS_PER_EPOCH], rel=1e-12)


@pytest.mark.parametrize(("schedule", "make_scheduler"), SCHEDULES)
def test_by_step_the_rate_is_torchs(schedule, make_scheduler):
    told = recipe({**schedule, "every": "step"}, total_steps=EPOCHS)
    expected = torch_rates(make_scheduler, 0.3, EPOCHS)
    assert [learning_rate(told, step) for step in range(EPOCHS)] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("schedule", [schedule for schedule, _ in SCHEDULES])
@pytest.mark.parametrize("warmup_steps", [0, 4])
def test_the_rate_is_exactly_what_lambda_lr_sets(schedule, warmup_steps):
    told = recipe({**schedule, "warmup_steps": warmup_steps}, lr=0.37)
    unit = recipe({**schedule, "warmup_steps": warmup_steps}, lr=1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = torch_rates(
            lambda o: lr_scheduler.LambdaLR(o, lambda step: learning_rate(unit, step)), 0.37, told.total_steps
        )
    assert [learning_rate(told, step) for step in range(told.total_steps)] == expected


@given(warmup=st.integers(1, 50), name=st.sampled_from(["constant", "exponential", "cosine"]))
def test_warm_up_rises_linearly_to_the_full_rate_and_then_the_schedule_says(warmup: int, name: str):
    with_warmup = recipe({"name": name, "warmup_steps": warmup}, lr=0.3)
    without = recipe({"name": name}, lr=0.3)
    for step in range(warmup):
        assert learning_rate(with_warmup, step) == pytest.approx(0.3 * (step + 1) / warmup)
    assert learning_rate(with_warmup, warmup - 1) == 0.3
    assert learning_rate(with_warmup, warmup) == learning_rate(without, warmup)


CYCLES = st.fixed_dictionaries(
    {
        "pct_start": st.floats(0.05, 0.5),
        "anneal_strategy": st.sampled_from(["cos", "linear"]),
        "three_phase": st.booleans(),
        "div_factor": st.floats(1, 100),
        "final_div_factor": st.floats(1, 1e5),
        "base_momentum": st.floats(0.1, 0.8),
        "max_momentum": st.floats(0.8, 0.99),
    }
)


@given(CYCLES, st.integers(50, 200), st.sampled_from(["sgd", "adamw"]))
def test_one_cycle_sets_the_rates_and_momenta_of_torchs_bit_for_bit(cycle, total_steps, name):
    kind, own = (torch.optim.SGD, {"momentum": 0.9}) if name == "sgd" else (torch.optim.AdamW, {"betas": (0.9, 0.99)})
    told = recipe({"name": "onecycle", **cycle}, lr=0.37, total_steps=total_steps)
    theirs, ours = (kind([torch.nn.Parameter(torch.zeros(1))], lr=0.37, **own) for _ in range(2))
    scheduler = lr_scheduler.OneCycleLR(theirs, 0.37, total_steps, **cycle)
    for step in range(total_steps):
        set_rates(ours.param_groups, told, step)
        for key in ("lr", "momentum", "betas"):
            assert ours.param_groups[0].get(key) == theirs.param_groups[0].get(key), (step, key)
        if step + 1 < total_steps:
            theirs.step()
            scheduler.step()
    assert learning_rate(told, total_steps + 7) == learning_rate(told, total_steps - 1)


@pytest.mark.parametrize(("own", "cycle"), [({"momentum": 0.0}, {}), ({"momentum": 0.9}, {"cycle_momentum": False})])
def test_a_momentum_that_is_not_cycled_stays(own, cycle):
    """An optimizer without momentum keeps no state for it."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1, **own)
    for step in (0, 5, 29):
        set_rates(optimizer.param_groups, recipe({"name": "onecycle", **cycle}), step)
        assert optimizer.param_groups[0]["momentum"] == own["momentum"]


@given(warmup=st.integers(0, 20), total=st.integers(21, 60))
def test_linear_by_step_falls_as_the_schedule_of_transformers_does(warmup: int, total: int):
    """Bit for bit after the warm-up, which here begins above 0 and reaches the full rate one step sooner."""
    told = recipe({"name": "linear", "every": "step", "warmup_steps": warmup}, lr=0.3, total_steps=total)
    for step in range(warmup, total):
        assert learning_rate(told, step) == 0.3 * max(0.0, (total - step) / max(1, total - warmup))


def test_linear_ends_at_its_floor_after_its_period():
    told = recipe({"name": "linear", "every": "step", "period": 4, "floor": 0.2}, lr=1.0)
    assert [learning_rate(told, step) for step in (0, 2, 4, 9)] == pytest.approx([1.0, 0.6, 0.2, 0.2])


OWN = "tests.support.models.schedules"


def test_a_function_of_the_users_says_the_factor():
    told = recipe({"name": f"{OWN}:of_inverse_root", "warmup_steps": 4}, lr=0.3, total_steps=40)
    check_schedule(told, ["tests.support"])
    assert learning_rate(told, 1) == 0.15
    assert [learning_rate(told, step) for step in range(4, 40)] == [0.3 * (step + 1) ** -0.5 for step in range(4, 40)]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("of_nothing", "gives the factor nan at step 30 of 40; it must be a finite number of 0 or more"),
        ("of_a_negative", "gives the factor -1.0 at step 0 of 40"),
        ("of_a_failure", "failed at step 0 of 40 with ZeroDivisionError"),
        ("of_one_argument", "failed at step 0 of 40 with TypeError"),
        ("of_none", r"^training\.schedule: factory .* has no callable 'of_none'"),
        ("of_chance", "another factor for the same step when it is asked again"),
        ("of_calls", "another factor for the same step when it is asked again"),
    ],
)
def test_a_function_of_the_users_without_a_finite_factor_is_refused(name, says):
    with pytest.raises(ModelError, match=says):
        check_schedule(recipe({"name": f"{OWN}:{name}"}, total_steps=40), None)


def test_a_function_that_is_not_allowed_is_not_imported():
    with pytest.raises(NotAllowedError, match=r"^training\.schedule: factory 'os:system' is not allowed"):
        check_schedule(recipe({"name": "os:system"}), ["tests.support"])


def test_cosine_counts_a_last_partial_epoch_and_stays_at_its_floor():
    told = recipe({"name": "cosine"}, lr=1.0, total_steps=STEPS_PER_EPOCH + 1)  # two epochs, the second of one step
    assert learning_rate(told, STEPS_PER_EPOCH) == pytest.approx(0.5)
    short = recipe({"name": "cosine", "every": "step", "period": 4, "floor": 0.25}, lr=1.0)
    assert [learning_rate(short, step) for step in (4, 5, 30)] == pytest.approx([0.25, 0.25, 0.25])
