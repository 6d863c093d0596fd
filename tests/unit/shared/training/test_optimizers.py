"""Rules for every registered optimizer: its computation, its state, and the judgement of both."""

import copy
import re
from inspect import signature
from pkgutil import resolve_name
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import nn

from shared.config import toml_value
from shared.errors import ModelError, NotAllowedError, ProtocolError
from shared.model.chain import build_chain
from shared.model.random_state import random_state
from shared.registry import OPTIMIZERS, OptimizerConfig, OptimizerSettings
from shared.registry.optimizers import OptimizerGroup
from shared.training import block_state, state_file
from shared.training.optimizers import (
    Grouping,
    build_optimizer,
    check_optimizer,
    check_parameters,
    check_sparse,
    optimizer_bytes,
    state_layout,
)
from tests.support.late_stages import recipe as recipe_of
from tests.support.plain import assert_same_bits, plain_optimizer

OWN = "tests.support.models.optimizers"
CHOICES: list[dict[str, Any]] = [
    {"name": "sgd"},
    {"name": "sgd", "momentum": 0.9, "nesterov": True},
    {"name": "adam", "betas": (0.8, 0.95)},
    {"name": "adamw", "eps": 1e-4},
    {"name": "rmsprop"},
    {"name": "rmsprop", "momentum": 0.5, "alpha": 0.9, "eps": 1e-3},
    {"name": "adagrad", "initial_accumulator_value": 0.5},
    {"name": "adafactor", "beta2_decay": -0.5},
    {"name": "lion", "betas": (0.8, 0.9)},
    {"name": "torch.optim:NAdam", "kwargs": {"betas": [0.8, 0.95], "momentum_decay": 0.01}},
    {"name": "torch.optim:ASGD", "kwargs": {"t0": 2.0}},
    {"name": f"{OWN}:Signed", "kwargs": {"decay": 0.5}},
]
CONFIGS = [OptimizerConfig(learning_rate=0.1, weight_decay=0.01, **choice) for choice in CHOICES]
SHAPES = [(), (1,), (7,), (3, 5), (1, 1), (4, 3, 2, 2)]
configs = pytest.mark.parametrize(
    "config", CONFIGS, ids=lambda config: toml_value(config.model_dump(exclude_defaults=True))
)


def test_every_optimizer_is_tried():
    assert {config.name for config in CONFIGS if ":" not in config.name} == set(OPTIMIZERS)


class Held(nn.Module):
    """One parameter of some shape and type."""

    def __init__(self, shape, dtype=torch.float32, *, learns=True):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, 60)[: torch.Size(shape).numel()].view(shape).to(dtype), learns)


def trained(module, config, steps=4):
    optimizer = build_optimizer(dict(module.named_parameters()), config)
    for step in range(steps):
        for parameter in module.parameters():
            parameter.grad = torch.cos(parameter.detach() * (step + 1))
        optimizer.step()
    return optimizer


def block_of(config, steps=4):
    """Build a block of two parameters, and its optimizer after so many steps."""
    block = build_chain(nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 2)), torch.ones(2, 6)).blocks[0]
    return block, trained(block.module, config, steps)


@configs
@pytest.mark.parametrize("shape", SHAPES)
def test_an_optimizer_updates_as_one_that_a_user_writes_with_the_same_numbers(config, shape):
    ours, theirs = Held(shape), Held(shape)
    trained(ours, config)
    expected = plain_optimizer(theirs, config)
    for step in range(4):
        theirs.weight.grad = torch.cos(theirs.weight.detach() * (step + 1))
        expected.step()
    assert torch.equal(ours.weight, theirs.weight)
    assert not torch.equal(ours.weight, Held(shape).weight)


@configs
def test_operations_are_in_the_same_order_on_every_device(config):
    assert not build_optimizer(dict(Held((3,)).named_parameters()), config).param_groups[0].get("foreach", False)


@configs
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_its_state_is_that_of_its_spec(config, shape, dtype):
    module = Held(shape, dtype)
    optimizer = trained(module, config)
    kept = {key: value for key, value in optimizer.state[module.weight].items() if isinstance(value, torch.Tensor)}
    said = state_layout(module.weight, config)
    assert {key: (tuple(value.shape), value.dtype) for key, value in kept.items()} == {
        key: (tensor.shape, tensor.dtype) for key, tensor in said.items()
    }
    on_meta = nn.Parameter(torch.empty(shape, dtype=dtype, device="meta"))
    assert optimizer_bytes([on_meta], config) == sum(value.nbytes for value in kept.values())


@configs
def test_no_state_is_kept_for_frozen_parameters(config):
    assert optimizer_bytes([Held((3,), learns=False).weight], config) == 0


def make_one_more_step(*blocks):
    """Make the same step on each block, by its optimizer."""
    for block, optimizer in blocks:
        for parameter in block.module.parameters():
            parameter.grad = torch.sin(parameter.detach())
        optimizer.step()


@configs
def test_a_state_that_moves_goes_on_as_if_it_had_stayed(config):
    here, optimizer = block_of(config)
    state = block_state.from_file(here, config, state_file.serialize(block_state.collect(here, optimizer)))
    there, arriving = block_of(config, steps=0)
    block_state.restore(there, arriving, config, state)
    make_one_more_step((here, optimizer), (there, arriving))
    assert block_state.digest(here) == block_state.digest(there)


@configs
def test_weights_that_come_without_a_state_begin_as_with_a_new_optimizer(config):
    weights = block_state.collect(block_of(config, steps=0)[0], None)
    used, its = block_of(config, steps=3)
    block_state.restore(used, its, config, weights)
    new, expected = block_of(config, steps=0)
    block_state.restore(new, expected, config, weights)
    make_one_more_step((used, its), (new, expected))
    assert block_state.digest(used) == block_state.digest(new)


@configs
def test_a_state_of_other_shapes_types_or_parts_is_refused(config):
    block, optimizer = block_of(config)
    state = block_state.collect(block, optimizer)
    block_state.check(block, config, state)
    entries = [entry for entry in state if entry.startswith("optimizer/")]
    wrong = {
        "it must have": lambda entry: {name: tensor for name, tensor in state.items() if name != entry},
        "has a": lambda entry: state | {entry: torch.zeros(3, 1, 1)},
        "it must be": lambda entry: state | {entry: state[entry].half()},
    }
    for entry in entries:
        parameter = block.named_parameters()[entry.removeprefix("optimizer/").rpartition("/")[0]]
        for says, change in wrong.items():
            if says == "it must have" and len(state_layout(parameter, config)) == 1:
                continue  # Without its one entry, a parameter has no state, which is permitted.
            with pytest.raises(ProtocolError, match=f"the optimizer state of '.*' .*{says}"):
                block_state.check(block, config, change(entry))
    for odd in ("optimizer/0.none/step", "optimizer/step", "optimizer//"):
        with pytest.raises(ProtocolError, match="fits no parameter"):
            block_state.check(block, config, state | {odd: torch.zeros(())})
    if entries:
        with pytest.raises(ProtocolError, match="fits no parameter"):
            block_state.check(block, None, state)


def test_a_block_has_the_momentum_of_late_gradients_under_a_correction_alone():
    block, optimizer = block_of(OptimizerConfig(name="sgd", momentum=0.99))
    state, plain = block_state.collect(block, optimizer), OptimizerConfig(name="sgd")
    block_state.check(block, recipe_of(plain, staleness_correction="prediction").optimizer_of_states, state)
    with pytest.raises(ProtocolError, match="fits no parameter"):
        block_state.check(block, recipe_of(plain).optimizer_of_states, state)


@configs
def test_a_receiver_allows_the_whole_state_and_hardly_more(config):
    block, optimizer = block_of(config)
    state = block_state.collect(block, optimizer)
    limit = block_state.max_serialized_bytes(block, config)
    assert len(state_file.serialize(state)) <= limit
    assert limit <= sum(tensor.nbytes for tensor in state.values()) + 512 * (len(state) + 8)


def test_adafactor_keeps_less_of_a_matrix_than_adam():
    matrix = nn.Parameter(torch.empty(1000, 1000, device="meta"))
    adam, adafactor = (optimizer_bytes([matrix], OptimizerConfig(name=name)) for name in ("adam", "adafactor"))
    assert (adam, adafactor) == (8_000_004, 8_004)


def test_a_key_means_the_same_with_every_optimizer_that_has_it():
    for key in (
        OptimizerConfig.model_fields.keys()
        - OptimizerSettings.model_fields.keys()
        - {"name", "kwargs", "clip_norm", "clip", "groups"}
    ):
        having = [spec.settings for spec in OPTIMIZERS.values() if key in spec.settings.model_fields]
        assert len({str(settings.model_fields[key].rebuild_annotation()) for settings in having}) == 1, key
        assert all(settings.describe_key(key) for settings in having), key


def test_an_omitted_key_is_at_the_optimizers_own_default():
    for name, betas in (("adam", (0.9, 0.999)), ("lion", (0.9, 0.99))):
        optimizer = build_optimizer(dict(Held((3,)).named_parameters()), OptimizerConfig(name=name))
        assert optimizer.param_groups[0]["betas"] == betas
    assert (OptimizerConfig.describe_key("betas") or "").endswith(
        "(adam, adamw, lion). Left out, [0.9, 0.999] with adam, adamw; [0.9, 0.99] with lion."
    )


@pytest.mark.parametrize("name", sorted(set(OPTIMIZERS) - {"sgd", "lion"}))
def test_a_rate_that_is_left_out_is_torchs_own(name):
    kind = resolve_name(OPTIMIZERS[name].implementation)
    assert OptimizerConfig(name=name).learning_rate == signature(kind).parameters["lr"].default


def test_a_rate_that_is_given_is_dumped_whatever_others_have_by_themselves():
    for config in (OptimizerConfig(name="adam", learning_rate=0.05), OptimizerConfig(name="lion")):
        assert OptimizerConfig(**config.model_dump(exclude_defaults=True)) == config


GROUPED = (
    OptimizerGroup(match=("*.bias",), weight_decay=0.0),
    OptimizerGroup(match=("1*", "*weight"), learning_rate=0.02),
)


@configs
def test_parameters_of_a_group_have_its_rate_and_decay(config):
    config = config.model_copy(update={"groups": GROUPED})
    with random_state("weights"):
        ours = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 2))
    theirs = copy.deepcopy(ours)
    trained(ours, config)
    expected = plain_optimizer(theirs, config)
    for step in range(4):
        for parameter in theirs.parameters():
            parameter.grad = torch.cos(parameter.detach() * (step + 1))
        expected.step()
    assert_same_bits(ours.state_dict(), theirs.state_dict())


@pytest.mark.parametrize("name", ["sgd", "adagrad", "adamw"])
def test_a_sparse_gradient_is_refused_beside_an_optimizer_that_takes_none(name):
    told = recipe_of(OptimizerConfig(name=name, weight_decay=0.0))
    if name != "adamw":
        check_sparse(["0.weight"], told)
        return
    with pytest.raises(
        ModelError, match=r"the gradient of '0.weight' is sparse, .* make the embedding with sparse=False"
    ):
        check_sparse(["0.weight"], told)


def test_a_sparse_gradient_is_refused_where_it_would_have_a_momentum_while_it_comes_late():
    told = recipe_of(OptimizerConfig(name="sgd"), staleness_correction="prediction")
    with pytest.raises(ModelError, match=r'deployment\.staleness_correction .* set it to "none"'):
        check_sparse(["0.weight"], told)


@pytest.mark.parametrize(
    ("names", "group"),
    [(["0.bias", "1.bias"], 1), (["0.weight", "1.weight", "1.deep.scale"], 2), (["0.scale", "2.deep"], 0)],
)
def test_the_first_group_that_a_name_fits_holds(names, group):
    grouping = Grouping(OptimizerConfig(groups=GROUPED))
    assert [grouping.of(name) for name in names] == [group] * len(names)


@pytest.mark.parametrize(
    ("match", "named"), [(["*.bias", "norm"], "norm"), (["*.bias", "2.*"], "2.*"), (["0.weight"], "0.weight")]
)
def test_a_name_that_changes_nothing_is_refused(match, named):
    """Block 0 does not learn, and the biases are in the first group."""
    module = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 2), nn.Linear(2, 2))
    module[0].requires_grad_(False)
    groups = [{"match": ("2.weight", "2.bias"), "weight_decay": 0.5}, {"match": tuple(match), "weight_decay": 0.0}]
    with pytest.raises(ModelError, match=re.escape(f"optimizer.groups[1].match names {named!r}, but")):
        Grouping(OptimizerConfig(groups=tuple(groups))).check(module)


def test_a_group_without_a_difference_or_a_name_is_refused():
    for group, sentence in (
        ({"match": ("0",)}, "a group needs a learning_rate or a weight_decay of its own"),
        ({"match": (), "weight_decay": 0.0}, "at least 1 item"),
    ):
        with pytest.raises(ValidationError, match=sentence):
            OptimizerConfig(groups=(group,))


TORCHS = (
    "NAdam",
    "RAdam",
    "Adamax",
    "Adadelta",
    "Rprop",
    "ASGD",
    "Adam",
    "AdamW",
    "SGD",
    "RMSprop",
    "Adagrad",
    "Adafactor",
    "Muon",
)


@pytest.mark.parametrize("name", [*(f"torch.optim:{name}" for name in TORCHS), f"{OWN}:Signed", f"{OWN}:Undecayed"])
def test_a_class_that_updates_each_parameter_by_itself_is_taken(name):
    config = OptimizerConfig(name=name, learning_rate=0.1)
    check_optimizer(config, ["torch.optim", OWN])
    module = Held((3, 5))
    kept = trained(module, config).state[module.weight]
    assert optimizer_bytes([module.weight], config) == sum(value.nbytes for value in kept.values())


@pytest.mark.parametrize(
    ("name", "more", "says"),
    [
        ("torch.optim:LBFGS", {}, "without a closure: TypeError: LBFGS.step.. missing 1 required positional argument"),
        ("torch.optim:SparseAdam", {}, "SparseAdam does not support dense gradients"),
        ("torch.optim:NAdam", {"kwargs": {"momentum": 0.9}}, "unexpected keyword argument 'momentum'"),
        ("torch.optim:NAdam", {"kwargs": {"betas": [0.9, 1.5]}}, "Invalid beta parameter"),
        ("torch.optim:Rprop", {"weight_decay": 0.1}, "takes no weight decay; leave weight_decay out"),
        ("torch.nn:Linear", {}, "is no class of torch.optim.Optimizer"),
        (f"{OWN}:OfAll", {}, "updates a parameter otherwise where it has others beside it"),
        (f"{OWN}:Counting", {}, "remembers something besides the tensors in its state"),
        (f"{OWN}:Looking", {}, "remembers something besides the tensors in its state"),
        (f"{OWN}:Noting", {}, "remembers something besides the tensors in its state"),
        (f"{OWN}:IntSteps", {}, r"keeps a int in its state \(step\); only tensors move with a block"),
        (f"{OWN}:Growing", {}, "begins to keep something after its first update"),
    ],
)
def test_a_class_that_no_block_could_have_by_itself_is_refused(name, more, says):
    with pytest.raises(ModelError, match=says):
        check_optimizer(OptimizerConfig(name=name, learning_rate=0.1, **more), None)


def test_a_parameter_that_a_class_does_not_take_is_named_with_the_way_out():
    config = OptimizerConfig(name="torch.optim:Muon", learning_rate=0.1)
    layer = nn.Linear(4, 4)
    says = r"parameter 'bias' cannot learn: .* of shape \(4,\): ValueError: Muon only supports 2D.*; name it in model\.frozen"
    with pytest.raises(ModelError, match=says):
        check_parameters(config, layer)
    layer.bias.requires_grad_(False)
    check_parameters(config, layer)
    check_parameters(OptimizerConfig(name="torch.optim:NAdam", learning_rate=0.1), nn.Linear(4, 4))


def test_a_class_that_would_end_the_process_is_refused():
    config = OptimizerConfig(name=f"{OWN}:Ending", learning_rate=0.1)
    check_optimizer(config, None)
    with pytest.raises(ModelError, match=r"cannot be tried on a parameter of shape \(2000,\): SystemExit"):
        state_layout(torch.nn.Parameter(torch.zeros(2000)), config)


def test_a_class_that_is_not_allowed_is_refused():
    with pytest.raises(NotAllowedError, match=r"'torch.optim:NAdam' is not allowed"):
        check_optimizer(OptimizerConfig(name="torch.optim:NAdam", learning_rate=0.1), [OWN])


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"name": "nadam"}, "name is 'nadam'; it must be one of sgd, adam"),
        ({"name": "NAdam"}, "lion, or package.module:class, as torch.optim:NAdam"),
        ({"kwargs": {"eps": 1.0}}, "sgd has no kwargs, which belongs to package.module:class"),
        (
            {"name": "torch.optim:SGD", "momentum": 0.9, "nesterov": True},
            "torch.optim:SGD has its arguments in kwargs; say kwargs = { momentum = 0.9, nesterov = true }",
        ),
        ({"name": "torch.optim:NAdam", "kwargs": {"lr": 0.1}}, "have lr; leave it out, say learning_rate beside it"),
        ({"name": "torch.optim:NAdam"}, "torch.optim:NAdam is given without a learning_rate; say learning_rate = "),
        ({"name": "torch.optim:NAdam", "kwargs": {"fused": True}}, "every device has the same operations"),
        ({"name": "torch.optim:NAdam", "kwargs": {"eps": [0.0] * 10_000}}, "at most 32768 are taken"),
    ],
)
def test_keys_that_do_not_suit_a_class_are_refused(keys, says):
    with pytest.raises(ValidationError, match=says):
        OptimizerConfig(**keys)
