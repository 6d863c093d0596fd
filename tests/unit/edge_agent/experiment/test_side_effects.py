"""A block or loss that hands something on beside its tensors is refused before the first step, whatever the cut is."""

import json

import pytest
import torch

from edge_agent.experiment.workload import Workload
from shared.errors import ModelError
from tests.support.models import beside
from tests.support.plain import assert_same_bits
from tests.support.running import edge_config

MODELS = "tests.support.models.beside"


@pytest.fixture(autouse=True)
def _nothing_left():
    yield
    beside.LEFT.clear()
    beside.SHARED.value, beside.SHARED.calls = None, 0


def workload(factory, loss="cross_entropy", **kwargs):
    arguments = ", ".join(f"{name}={json.dumps(value)}" for name, value in kwargs.items())
    loss = f"{MODELS}:{loss}" if hasattr(beside, loss) else loss
    return Workload(
        edge_config(
            f'model.factory="{factory}"',
            f"model.kwargs={{{arguments}}}",
            'data.train={factory="tests.support.samples:FlatDigits"}',
            "data.batch_size=8",
            f'training.loss="{loss}"',
        )
    )


@pytest.mark.parametrize(
    ("leave", "loss"),
    [
        ("on_a_list", "adding_the_list"),
        ("a_number_on_a_list", "adding_the_list"),
        ("weights_on_a_list", "adding_the_list"),
        ("in_an_attribute", "adding_the_attribute"),
        ("nothing", "adding_weights"),
        ("nothing", "by_the_last_loss"),
        ("nothing", "drawn"),
    ],
)
def test_a_loss_that_takes_more_than_outputs_and_labels_is_refused(leave, loss):
    with pytest.raises(ModelError, match=f"training.loss '{MODELS}:{loss}' .*one output more"):
        workload(f"{MODELS}:model", loss, leave=leave)


@pytest.mark.parametrize("leave", ["on_a_list", "weights_on_a_list", "in_an_attribute"])
def test_the_block_that_gives_it_to_the_loss_is_named(leave):
    loss = "adding_the_attribute" if leave == "in_an_attribute" else "adding_the_list"
    with pytest.raises(ModelError, match="block '2' gives it something"):
        workload(f"{MODELS}:model", loss, leave=leave)


@pytest.mark.parametrize(
    ("leave", "read", "named"),
    [
        ("on_a_list", "from_a_list", "4"),
        ("a_number_on_a_list", "from_a_list", "4"),
        ("in_a_global", "from_a_global", "4"),
        ("size_of_weights", "from_a_global", "4"),
        ("nothing", "by_others_weights", "4"),
        ("nothing", "by_others_learning_weights", "4"),
        ("by_last_batch", None, "2"),
        ("by_own_count", None, "2"),
    ],
)
def test_a_block_that_takes_more_than_its_inputs_is_refused(leave, read, named):
    with pytest.raises(ModelError, match=f"block '{named}' .*one tensor more"):
        workload(f"{MODELS}:model", leave=leave, **({} if read is None else {"read": read}))


@pytest.mark.parametrize(
    ("leave", "said"),
    [
        ("by_python", "draws from Python's random in its forward, .*let it draw from torch's default generator"),
        ("by_numpy", "draws from numpy.* in its forward, .*let it draw from torch's default generator"),
        ("by_calls", "torch's default generator, and all that it remembers must be buffers"),
    ],
)
def test_a_block_that_draws_elsewhere_than_from_torch_or_counts_in_a_global_is_refused(leave, said):
    with pytest.raises(ModelError, match=said):
        workload(f"{MODELS}:model", leave=leave)


def test_a_loss_with_parameters_of_its_own_is_refused():
    with pytest.raises(ModelError, match=r"has parameters of its own \(1, of shape \(10, 10\)\).*last block"):
        workload(f"{MODELS}:model", "arc_face", leave="nothing")


@pytest.mark.parametrize("loss", ["cross_entropy", "smoothed", "of_eight", "writing_down"])
def test_notes_that_nobody_computes_with_change_nothing_and_are_allowed(loss):
    workload(f"{MODELS}:model", loss, leave="noting")


def test_the_model_stays_as_it_was():
    built = workload("tests.support.models.remembering:remembering")
    module = built.chain.module
    again = built.built_again().module
    assert_same_bits(dict(again.state_dict()), dict(module.state_dict()))
    assert all(parameter.grad is None for parameter in module.parameters())
    assert [part.training for part in module.modules()] == [part.training for part in again.modules()]
    assert torch.is_grad_enabled()
