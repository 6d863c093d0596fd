"""The recipe: permitted combinations, and how it travels."""

import json
from typing import Any

import pytest
from pydantic import ValidationError

from shared.registry import OptimizerConfig
from shared.training.recipe import Changes, Recipe, ScheduleConfig
from shared.version import PROTOCOL_VERSION


@pytest.mark.parametrize(
    ("values", "what"),
    [
        ({"nesterov": True}, "nesterov is true but momentum is 0"),
        ({"name": "adam", "momentum": 0.9}, "adam has no momentum, which belongs to sgd, rmsprop"),
        ({"name": "rmsprop", "momentum": 0.9, "nesterov": True}, "rmsprop has no nesterov, which belongs to sgd"),
        ({"name": "sgd", "betas": (0.5, 0.5)}, "sgd has no betas, which belongs to adam, adamw, lion"),
        ({"name": "sgd", "eps": 1e-3}, "sgd has no eps, which belongs to adam, adamw, rmsprop, adagrad"),
        ({"name": "adamw", "alpha": 0.5}, "adamw has no alpha, which belongs to rmsprop"),
        ({"momentum": 1.0}, "less than 1"),
        ({"learning_rate": 0.0}, "greater than 0"),
        ({"clip_norm": 0.0}, "greater than 0"),
        ({"clip": "model"}, 'clip is "model", and there is no norm to clip to'),
    ],
)
def test_an_optimizer_that_makes_no_sense_is_refused(values, what: str):
    with pytest.raises(ValidationError, match=what):
        OptimizerConfig(**values)


@pytest.mark.parametrize(
    ("values", "what"),
    [
        ({"name": "multistep"}, "needs milestones"),
        ({"name": "multistep", "milestones": (2, 2)}, r"milestones are \[2, 2\]; they must increase"),
        ({"name": "multistep", "milestones": (0, 2)}, "greater than 0"),
        ({"milestones": (2,)}, "constant has no milestones, which belongs to multistep"),
        ({"name": "exponential", "floor": 0.5}, "exponential has no floor, which belongs to cosine, linear"),
        ({"name": "onecycle", "warmup_steps": 5}, "onecycle has no warmup_steps, which belongs to constant"),
        ({"name": "cosine", "pct_start": 0.2}, "cosine has no pct_start, which belongs to onecycle"),
        ({"name": "mine:factor", "gamma": 0.2}, "mine:factor has no gamma"),
        ({"name": "triangle"}, "name is 'triangle'; it must be one of constant, multistep"),
        ({"name": "onecycle", "three_phase": True, "pct_start": 0.6}, "must be 0.5 or less"),
        ({"name": "cosine", "gamma": 0.5}, "cosine has no gamma, which belongs to multistep, exponential"),
        ({"name": "multistep", "milestones": (2,), "period": 3}, "multistep has no period"),
    ],
)
def test_a_schedule_that_makes_no_sense_is_refused(values, what: str):
    with pytest.raises(ValidationError, match=what):
        ScheduleConfig(**values)


@pytest.mark.parametrize("values", [{"name": "rmsprop"}, {"name": "adagrad"}, {"name": "adafactor"}, {"name": "lion"}])
def test_a_prediction_under_an_optimizer_without_momentum_is_refused(values):
    optimizer = OptimizerConfig(**values)
    with pytest.raises(ValidationError, match=f"follows the momentum of the optimizer, and {optimizer.name} has none"):
        Recipe(
            optimizer=optimizer,
            schedule=ScheduleConfig(),
            loss="mse",
            seed=0,
            staleness_correction="prediction",
            steps_per_epoch=5,
            total_steps=50,
        )


def test_features_are_kept_in_one_way_alone():
    given = {
        "optimizer": OptimizerConfig(),
        "schedule": ScheduleConfig(),
        "loss": "mse",
        "seed": 0,
        "frozen_mode": "eval",
        "steps_per_epoch": 5,
        "total_steps": 50,
    }
    changes = Changes(samples=4, codec="topk1")
    assert Recipe(recalled_samples=4, **given).recalls
    assert Recipe(changes=changes, **given).changes == changes
    with pytest.raises(ValidationError, match="features are recalled, and what changes of them is sent"):
        Recipe(recalled_samples=4, changes=changes, **given)


def test_a_prediction_by_a_momentum_that_changes_is_refused():
    given = {
        "optimizer": OptimizerConfig(momentum=0.9),
        "loss": "mse",
        "seed": 0,
        "steps_per_epoch": 5,
        "total_steps": 50,
    }
    with pytest.raises(ValidationError, match="goes by a momentum that stays, and onecycle changes it"):
        Recipe(schedule=ScheduleConfig(name="onecycle"), staleness_correction="prediction", **given)
    still = ScheduleConfig(name="onecycle", cycle_momentum=False)
    assert Recipe(schedule=still, staleness_correction="prediction", **given).schedule == still


def test_a_key_at_its_default_is_not_refused():
    written_out = OptimizerConfig(name="adam", momentum=0.0, nesterov=False, alpha=0.99)
    assert written_out == OptimizerConfig(name="adam")


def test_the_recipe_travels_as_json():
    told = Recipe(
        optimizer=OptimizerConfig(name="adam", betas=(0.5, 0.9), clip_norm=1.0),
        schedule=ScheduleConfig(name="multistep", milestones=(1, 4)),
        loss="cross_entropy",
        seed=3,
        steps_per_epoch=5,
        total_steps=50,
    )
    text = told.model_dump_json()
    assert Recipe.model_validate_json(text) == told
    with pytest.raises(ValidationError):
        Recipe.model_validate_json(json.dumps({**json.loads(text), "unheard_of": 1}))
    with pytest.raises(ValidationError):
        Recipe.model_validate_json(json.dumps({**json.loads(text), "steps_per_epoch": "5"}))


RECIPES = {
    31: {
        "accumulate_batches": "integer",
        "changes.above": "number",
        "changes.codec": "string",
        "changes.samples": "integer",
        "checkpoint_activations": "boolean",
        "ema.decay": "number",
        "frozen": "array",
        "frozen_mode": "string",
        "label_tensors": "integer",
        "learns": "array",
        "loss.kwargs": "object",
        "loss.name": "string",
        "mean": "string",
        "metrics": "array",
        "optimizer.alpha": "number",
        "optimizer.beta2_decay": "number",
        "optimizer.betas": "array or null",
        "optimizer.clip": "string",
        "optimizer.clip_norm": "number or null",
        "optimizer.clip_threshold": "number",
        "optimizer.eps": "number or null",
        "optimizer.groups": "array",
        "optimizer.initial_accumulator_value": "number",
        "optimizer.kwargs": "object",
        "optimizer.learning_rate": "number",
        "optimizer.momentum": "number",
        "optimizer.name": "string",
        "optimizer.nesterov": "boolean",
        "optimizer.weight_decay": "number",
        "output": "string or null",
        "precision": "object or string",
        "recalled_label_bytes": "integer",
        "recalled_samples": "integer",
        "samples_ahead": "integer",
        "schedule.anneal_strategy": "string",
        "schedule.base_momentum": "number",
        "schedule.cooldown": "integer",
        "schedule.cycle_momentum": "boolean",
        "schedule.div_factor": "number",
        "schedule.every": "string",
        "schedule.factor": "number",
        "schedule.final_div_factor": "number",
        "schedule.floor": "number",
        "schedule.gamma": "number",
        "schedule.max_momentum": "number",
        "schedule.metric": "string",
        "schedule.milestones": "array",
        "schedule.min": "number",
        "schedule.mode": "string or null",
        "schedule.name": "string",
        "schedule.patience": "integer",
        "schedule.pct_start": "number",
        "schedule.period": "integer or null",
        "schedule.three_phase": "boolean",
        "schedule.threshold": "number",
        "schedule.warmup_steps": "integer",
        "seed": "integer",
        "staleness_correction": "string",
        "steps_per_epoch": "integer",
        "total_steps": "integer",
    }
}
"""The keys of the recipe and their JSON types, by the version of the protocol."""


def keys_of(section: dict[str, Any], sections: dict[str, Any], prefix: str = "") -> dict[str, str]:
    """Return the keys of a section's JSON schema, those of nested ones with dots, and their types."""
    found = {}
    for key, schema in section["properties"].items():
        refs = [each["$ref"] for each in schema.get("anyOf", [schema]) if "$ref" in each]
        if refs:
            found |= keys_of(sections[refs[0].rpartition("/")[2]], sections, f"{prefix}{key}.")
        else:
            found[prefix + key] = " or ".join(each["type"] for each in schema.get("anyOf", [schema]))
    return found


def test_a_peer_that_lacks_a_key_of_the_recipe_speaks_another_version():
    """A recipe travels with all its keys, and a peer that does not know one of them refuses every run.

    If you add a key, raise PROTOCOL_VERSION, and write the keys of that version beside these.
    """
    schema = Recipe.model_json_schema()
    assert keys_of(schema, schema["$defs"]) == RECIPES[PROTOCOL_VERSION]
