"""Parameters that learn, chosen by names."""

import copy

import pytest
import torch
from torch import nn

from shared.errors import ModelError
from shared.model.build import build_checked_chain
from shared.model.learning import Learning

ALL = {"0.1.weight", "0.1.bias", "1.0.weight", "1.0.bias", "2.weight", "2.bias"}


def learning(**names):
    """Return the parameters of a small network that learn under such names."""
    chain = build_checked_chain("shared.model.zoo:mlp", {}, 0, torch.zeros(2, 64), learning=Learning(**names))
    return {name for name, value in chain.module.named_parameters() if value.requires_grad}


def half_frozen():
    """Make two layers, the first of which has a weight that does not learn."""
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    module[0].weight.requires_grad_(False)
    return module


@pytest.mark.parametrize(
    ("name", "fits"),
    [
        ("0", {"0.1.weight", "0.1.bias"}),
        ("0.1", {"0.1.weight", "0.1.bias"}),
        ("0.1.weight", {"0.1.weight"}),
        ("*.bias", {name for name in ALL if name.endswith(".bias")}),
        ("0.*.weigh?", {"0.1.weight"}),
        ("[01].*", {name for name in ALL if name[0] in "01"}),
    ],
)
def test_a_name_stands_for_a_parameter_what_is_under_a_module_or_what_fits_a_pattern(name, fits):
    parameters = learning()
    fits = {parameter for parameter in parameters if parameter in fits or parameter.startswith(f"{name}.")}
    assert fits
    assert learning(frozen=(name,)) == parameters - fits
    assert learning(learns=(name,)) == fits


def test_what_is_frozen_does_not_learn_by_another_name():
    assert learning(learns=("*.weight", "0"), frozen=("0.1.weight",)) == {
        name for name in learning() if name.endswith(".weight") or name.startswith("0.")
    } - {"0.1.weight"}


def test_a_parameter_that_its_module_has_frozen_stays_so():
    chain = build_checked_chain(
        f"{__name__}:half_frozen", {}, 0, torch.zeros(2, 4), learning=Learning(learns=("0", "1"))
    )
    learning = {name for name, value in chain.module.named_parameters() if value.requires_grad}
    assert learning == {"0.bias", "1.weight", "1.bias"}


@pytest.mark.parametrize("key", ["frozen", "learns"])
@pytest.mark.parametrize("name", ["0.we", "*.gamma", "", "1.", "0.1.weight.data"])
def test_a_name_that_stands_for_no_parameter_is_refused(key, name):
    with pytest.raises(ModelError, match=rf"model\.{key} names '.*', but the model has no parameter of that name"):
        learning(**{key: ("0", name)})


@pytest.mark.parametrize("key", ["frozen", "learns"])
def test_patterns_are_bounded_because_each_is_tried_on_every_parameter(key):
    learning(**{key: ("0*",) * 1000})
    with pytest.raises(ModelError, match=rf"model\.{key} has 101 patterns; 100 are possible"):
        learning(**{key: tuple(f"{number}*" for number in range(101))})


def test_many_names_take_one_look_at_the_parameters(monkeypatch):
    looks = []

    def looked(module, *args, through=nn.Module.named_parameters, **kwargs):
        looks.append(module)
        return through(module, *args, **kwargs)

    monkeypatch.setattr(nn.Module, "named_parameters", looked)
    counts = []
    for frozen in (["0.1"], ["0.1", "0.1.weight", "0", "1"] * 500):
        looks.clear()
        learning(frozen=tuple(frozen))
        counts.append(len(looks))
    assert counts[0] == counts[1]


def test_frozen_modules_stay_in_evaluation_also_in_a_copy():
    kwargs = {"width": 8, "blocks": 2, "dropout": 0.2}
    chain = build_checked_chain(
        "shared.model.zoo:residual_cnn",
        kwargs,
        0,
        torch.zeros(2, 1, 8, 8),
        learning=Learning(frozen=("stem",), frozen_mode="eval"),
    )
    for module in (chain.module, copy.deepcopy(chain.module)):
        for mode in (False, True):
            module.train(mode)
            assert {part.training for part in module.stem.modules()} == {False}
            assert {part.training for part in module.layers.modules()} == {mode}


class Switched(nn.Linear):
    """A layer whose `train` names its argument in its own way."""

    def train(self, on=True):
        return super().train(on)


def switched():
    """Make two such layers."""
    return nn.Sequential(Switched(4, 4), Switched(4, 2))


def test_a_frozen_module_with_a_train_of_its_own_stays_in_evaluation():
    frozen = Learning(frozen=("0",), frozen_mode="eval")
    chain = build_checked_chain(f"{__name__}:switched", {}, 0, torch.zeros(2, 4), learning=frozen)
    assert [part.training for part in chain.module.train()] == [False, True]
