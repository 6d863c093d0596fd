"""First weights from a file: one that fits by the names of tensors is taken whole; another is refused in a sentence."""

import pytest
import torch
from safetensors.torch import load_file, save_file, save_model
from torch import Tensor, nn

from edge_agent.experiment.first_weights import load_weights
from edge_agent.training_config import StartFromConfig
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


def refused(module, path, **how):
    """The sentence of the refusal, which has changed nothing."""
    before = {name: value.clone() for name, value in module.state_dict().items()}
    with pytest.raises(ConfigError) as refusal:
        load_weights(module, StartFromConfig(path=path, **how))
    assert_same_bits(before, module.state_dict())
    return str(refusal.value).removeprefix(f"training.start_from: {path} does not fit the model: ")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "begin.safetensors"


def test_a_file_without_the_buffers_that_the_state_dict_leaves_out_fits(path):
    theirs, ours = shifted(1), shifted(2)
    save_file(theirs.state_dict(), path)
    load_weights(ours, StartFromConfig(path=path))
    assert_same_bits(theirs.state_dict(), ours.state_dict())


def test_such_a_buffer_is_loaded_where_the_file_has_it(path):
    ours = shifted(2)
    save_file({**shifted(1).state_dict(), "0.shift": torch.full((4,), 3.0)}, path)
    load_weights(ours, StartFromConfig(path=path))
    assert ours[0].shift.tolist() == [3.0] * 4


def test_a_tensor_of_several_names_may_stand_under_one_of_them(path):
    """As `safetensors.torch.save_model` writes tied weights."""
    theirs, ours = tied(), tied()
    save_model(theirs, str(path))
    assert load_file(path).keys() < theirs.state_dict().keys()
    load_weights(ours, StartFromConfig(path=path))
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
    save_file({f"net.{name}0": value for name, value in weights.items()}, path)
    assert refused(shifted(2), path) == (
        "it lacks '0.weight', '0.bias', '1.weight' and 5 more, and holds 'net.0.bias0', 'net.0.weight0', "
        "'net.1.bias0' and 6 more, which the model does not have; its tensors must have the names of the model's state dict"
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
        "differ, too; training.start_from.widen = true takes types of fewer bits, whose values stay the same"
    )


@pytest.mark.parametrize(
    "prefix", ["module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module.", "module.module.", "model.", "a.net."]
)
def test_the_prefixes_of_what_a_model_was_wrapped_in_are_off(path, prefix):
    theirs, ours = shifted(1), shifted(2)
    save_file({f"{prefix}{name}": value for name, value in theirs.state_dict().items()}, path)
    load_weights(ours, StartFromConfig(path=path))
    assert_same_bits(theirs.state_dict(), ours.state_dict())


def test_a_layer_that_is_compiled_on_one_side_alone_fits(path):
    theirs, ours = shifted(1), shifted(2)
    theirs[0] = torch.compile(theirs[0], backend="eager")
    ours[2] = torch.compile(ours[2], backend="eager")
    save_file(theirs.state_dict(), path)
    load_weights(ours, StartFromConfig(path=path))
    assert torch.equal(ours[0].weight, theirs[0].weight)
    assert torch.equal(ours[2].weight, theirs[2].weight)


def test_two_names_that_are_one_without_the_prefix_are_refused(path):
    weights = shifted(1).state_dict()
    save_file({**weights, "0._orig_mod.weight": weights["0.weight"].clone()}, path)
    assert refused(shifted(2), path) == (
        "'0._orig_mod.weight' and '0.weight' are one name without the prefix `_orig_mod.`"
    )


def test_a_child_named_module_keeps_its_name(path):
    theirs, ours = (nn.ModuleDict({"module": shifted(seed)}) for seed in (1, 2))
    save_file(theirs.state_dict(), path)
    load_weights(ours, StartFromConfig(path=path))
    assert_same_bits(theirs.state_dict(), ours.state_dict())
    save_file({f"module.{name}": value for name, value in theirs.state_dict().items()}, path)
    load_weights(ours, StartFromConfig(path=path))


BESIDES = {"loss.weight": torch.zeros(2), "train_accuracy.total": torch.zeros(1), "scale": torch.zeros(1)}
"""Tensors of a loss, a metric and a module of Lightning around the model."""


@pytest.mark.parametrize("prefix", ["model.", "a.net."])
@pytest.mark.parametrize("allow", [(), ("loss.*",)])
def test_what_stands_beside_the_model_in_a_file_is_left_out_and_listed(path, prefix, allow):
    theirs, ours = shifted(1), shifted(2)
    weights = {f"{prefix}{name}": value for name, value in theirs.state_dict().items()}
    save_file({**weights, **BESIDES}, path)
    found = load_weights(ours, StartFromConfig(path=path, allow=allow))
    assert_same_bits(theirs.state_dict(), ours.state_dict())
    assert (found.drawn, found.unused) == ((), tuple(sorted(BESIDES)))


def test_what_the_model_lacks_with_its_prefix_or_without_any_is_refused(path):
    weights = shifted(1).state_dict()
    prefixed = {f"model.{name}": value for name, value in weights.items()}
    save_file({**prefixed, "model.3.weight": torch.zeros(2), **BESIDES}, path)
    assert refused(shifted(2), path).startswith("it holds '3.weight', which the model does not have")
    save_file({**weights, **BESIDES}, path)
    assert refused(shifted(2), path).startswith("it holds 'loss.weight', 'scale' and 'train_accuracy.total', which")
    del prefixed["model.2.bias"]
    save_file({**prefixed, **BESIDES}, path)
    assert refused(shifted(2), path).startswith("it lacks '2.bias';")


def test_a_file_with_the_model_twice_is_refused(path):
    weights = shifted(1).state_dict()
    save_file(
        {f"{prefix}.{name}": value.clone() for prefix in ("model", "ema") for name, value in weights.items()}, path
    )
    assert refused(shifted(2), path) == (
        "names of the model follow both 'ema.' and 'model.' in it, so either could be meant; let it have one"
    )


@pytest.mark.parametrize("allow", [("*",), ("0.*", "1.*", "2.*", "a.*")])
def test_a_file_of_which_nothing_would_be_taken_is_refused_whatever_may_differ(path, allow):
    save_file({"a.b.weight": torch.zeros(1), "0.bias": torch.zeros(3)}, path)
    assert refused(shifted(2), path, allow=allow) == (
        "nothing of it would be taken, because no tensor has the name, shape and type of one of the model: it holds '0.bias' "
        "and 'a.b.weight', and the model has '0.weight', '0.bias', '1.weight' and 5 more"
    )


def test_an_empty_file_is_refused_whatever_may_differ(path):
    save_file({}, path)
    assert "it holds nothing, and the model has '0.weight'" in refused(shifted(2), path, allow=("*",))


def test_a_count_of_batches_that_the_file_lacks_is_zero(path):
    theirs, ours = shifted(1), shifted(2)
    save_file({name: value for name, value in theirs.state_dict().items() if "num_batches" not in name}, path)
    assert load_weights(ours, StartFromConfig(path=path)).drawn == ()
    assert_same_bits(theirs.state_dict(), ours.state_dict())
    assert int(ours[1].num_batches_tracked) == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_weights_in_fewer_bits_are_widened_on_request_with_the_same_values(path, dtype):
    theirs, ours = shifted(1), shifted(2)
    save_file(theirs.to(dtype).state_dict(), path)
    load_weights(ours, StartFromConfig(path=path, widen=True))
    assert_same_bits(theirs.float().state_dict(), ours.state_dict())


@pytest.mark.parametrize("dtype", [torch.float64, torch.int32, torch.float8_e4m3fn])
def test_types_whose_values_could_change_are_never_taken(path, dtype):
    save_file({**shifted(1).state_dict(), "2.bias": torch.ones(2).to(dtype)}, path)
    assert refused(shifted(2), path, widen=True) == f"'2.bias' is {dtype} (2,) and must be torch.float32 (2,)"


def other_head(path):
    """A file whose last layer has another width, with a layer more, and one fewer buffer."""
    theirs = shifted(1)
    weights = {
        **theirs.state_dict(),
        "2.weight": torch.zeros(5, 4),
        "2.bias": torch.zeros(5),
        "aux.weight": torch.zeros(3),
    }
    del weights["1.running_var"]
    save_file(weights, path)
    return theirs


def test_what_may_differ_comes_from_the_seed_and_is_listed(path):
    theirs, ours = other_head(path), shifted(2)
    found = load_weights(ours, StartFromConfig(path=path, allow=("2", "aux.*", "1.running_var")))
    assert found.drawn == ("1.running_var", "2.weight", "2.bias")
    assert found.unused == ("2.bias", "2.weight", "aux.weight")
    assert sorted(found.loaded) == [
        "0.bias",
        "0.weight",
        "1.bias",
        "1.num_batches_tracked",
        "1.running_mean",
        "1.weight",
    ]
    expected = shifted(2)
    fitting = {name: value for name, value in theirs.state_dict().items() if name in found.loaded}
    expected.load_state_dict(fitting, strict=False)
    assert_same_bits(expected.state_dict(), ours.state_dict())


@pytest.mark.parametrize(
    ("allow", "said"),
    [
        (("2.*", "aux.*"), "it lacks '1.running_var'"),
        (("2.*", "1.*"), "it holds 'aux.weight', which the model does not have"),
        (("aux.*", "1.*", "2.bias"), "'2.weight' is torch.float32 (5, 4) and must be torch.float32 (2, 4)"),
    ],
)
def test_what_may_not_differ_is_refused_as_ever(path, allow, said):
    other_head(path)
    assert refused(shifted(2), path, allow=allow).startswith(said)


def test_what_may_differ_and_fits_is_loaded(path):
    theirs, ours = shifted(1), shifted(2)
    save_file(theirs.state_dict(), path)
    assert load_weights(ours, StartFromConfig(path=path, allow=("2.*",))).drawn == ()
    assert_same_bits(theirs.state_dict(), ours.state_dict())


def test_a_name_that_may_differ_and_is_nowhere_is_refused(path):
    save_file(shifted(1).state_dict(), path)
    with pytest.raises(
        ConfigError, match=r"training\.start_from\.allow names 'haed\.\*', but neither the file nor the model"
    ):
        load_weights(shifted(2), StartFromConfig(path=path, allow=("haed.*",)))


def test_a_tied_weight_that_fits_under_one_of_its_names_is_loaded(path):
    theirs, ours = tied(), tied()
    weights = {name: value.clone() for name, value in theirs.state_dict().items()}
    weights["1.second.weight"] = torch.zeros(1)
    save_file(weights, path)
    found = load_weights(ours, StartFromConfig(path=path, allow=("1.second.weight",)))
    assert (found.drawn, found.unused) == ((), ("1.second.weight",))
    assert_same_bits(theirs.state_dict(), ours.state_dict())
