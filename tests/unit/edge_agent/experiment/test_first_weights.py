"""First weights from a file: one that fits by the names of tensors is taken whole; another is refused in a sentence."""

import pytest
import torch
from safetensors.torch import load_file, save_file, save_model
from torch import Tensor, nn

from edge_agent.experiment.first_weights import load_weights
from shared.errors import ConfigError
from tests.support.models.tied import tied
from tests.support.plain import assert_same_bits


class Shifted(nn.Linear):
    """A linear layer that adds a buffer which its state dict leaves out."""

    def __init__(self) -> None:
        super().__init__(4, 4)
        self.register_buffer("shift", torch.ones(4), persistent=False)

    def forward(self, value: Tensor) -> Tensor:
        return super().forward(value + self.shift)


def shifted(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(Shifted(), nn.BatchNorm1d(4), nn.Linear(4, 2))


def refused(module, path):
    """The sentence of the refusal, which has changed nothing."""
    before = {name: value.clone() for name, value in module.state_dict().items()}
    with pytest.raises(ConfigError) as refusal:
        load_weights(module, path)
    assert_same_bits(before, module.state_dict())
    return str(refusal.value).removeprefix(f"training.start_from: {path} does not fit the model: ")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "begin.safetensors"


@pytest.mark.parametrize("old", [False, True])
def test_a_file_of_torch_save_is_told_how_to_convert_and_fits_when_that_is_done(path, old):
    theirs, ours, saved = shifted(1), shifted(2), path.with_suffix(".pth")
    torch.save(theirs.state_dict(), saved, _use_new_zipfile_serialization=not old)
    assert "torch.save has written it" in (sentence := refused(ours, saved))
    assert "safetensors.torch.save_file(torch.load(path, weights_only=True), new_path)" in sentence
    save_file(torch.load(saved, weights_only=True), path)
    load_weights(ours, path)
    assert_same_bits(theirs.state_dict(), ours.state_dict())


def test_a_file_without_the_buffers_that_the_state_dict_leaves_out_fits(path):
    theirs, ours = shifted(1), shifted(2)
    save_file(theirs.state_dict(), path)
    load_weights(ours, path)
    assert_same_bits(theirs.state_dict(), ours.state_dict())


def test_such_a_buffer_is_loaded_where_the_file_has_it(path):
    ours = shifted(2)
    save_file({**shifted(1).state_dict(), "0.shift": torch.full((4,), 3.0)}, path)
    load_weights(ours, path)
    assert ours[0].shift.tolist() == [3.0] * 4


def test_a_tensor_of_several_names_may_stand_under_one_of_them(path):
    """As `safetensors.torch.save_model` writes tied weights."""
    theirs, ours = tied(), tied()
    save_model(theirs, str(path))
    assert load_file(path).keys() < theirs.state_dict().keys()
    load_weights(ours, path)
    assert_same_bits(theirs.state_dict(), ours.state_dict())
    assert ours[1].first.weight is ours[1].second.weight


def test_a_tensor_of_several_names_cannot_have_two_values(path):
    weights = {name: value.clone() for name, value in tied().state_dict().items()}
    weights["1.second.weight"] += 1
    save_file(weights, path)
    assert refused(tied(), path) == (
        "it holds different values for '1.first.weight' and '1.second.weight', which are one tensor of the model"
    )


def test_all_that_is_missing_or_too_many_is_named_up_to_three_and_counted(path):
    weights = shifted(1).state_dict()
    save_file({f"module.{name}": value for name, value in weights.items()}, path)
    assert refused(shifted(2), path) == (
        "it lacks '0.weight', '0.bias', '1.weight' and 6 more, and holds 'module.0.bias', 'module.0.weight', "
        "'module.1.bias' and 6 more, which the model does not have; its tensors must have the names of the model's state dict"
    )


def test_one_that_is_missing_is_named_alone(path):
    weights = shifted(1).state_dict()
    del weights["2.bias"]
    save_file(weights, path)
    assert refused(shifted(2), path) == "it lacks '2.bias'; its tensors must have the names of the model's state dict"


def test_two_that_the_model_does_not_have_are_named_alone(path):
    save_file({**shifted(1).state_dict(), "y" * 200: torch.zeros(1), "x": torch.zeros(1)}, path)
    assert refused(shifted(2), path) == (
        f"it holds 'x' and '{'y' * 79}…', which the model does not have; its tensors must have the names of the model's "
        "state dict"
    )


def test_another_shape_or_type_is_named_with_what_would_be_right(path):
    weights = shifted(1).state_dict()
    halved = {name: weights[name].half() for name in ("0.weight", "2.weight")}
    save_file({**weights, "2.bias": torch.zeros(3), **halved}, path)
    assert refused(shifted(2), path) == (
        "'0.weight' is torch.float16 (4, 4) and must be torch.float32 (4, 4); the shapes or types of '2.weight' and '2.bias' "
        "differ, too"
    )
