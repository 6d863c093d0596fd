"""Averages of weights: torch's steps, and a part of a block's state that is judged as the rest of it."""

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from shared.errors import ProtocolError
from shared.model.chain import build_chain
from shared.registry import OptimizerConfig
from shared.training import block_state, state_file
from shared.training.averages import add_to_averages, averaged_state
from shared.training.held_blocks import HeldBlocks
from shared.training.recipe import EmaConfig
from tests.support.placed import recipe

CONFIG = OptimizerConfig(name="adam", learning_rate=0.1)
CPU = torch.device("cpu")


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def block_of(module):
    return build_chain(module, torch.ones(4, 6)).blocks[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("decay", [0.0, 0.4, 0.9, 0.999])
def test_each_step_is_torchs(dtype, decay):
    module = net().to(dtype)
    theirs, ours = AveragedModel(module, multi_avg_fn=get_ema_multi_avg_fn(decay)), {}
    for step in range(5):
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.add_(torch.sin(parameter * (step + 1)))
            module[1].running_mean.add_(0.5)
        theirs.update_parameters(module)
        add_to_averages(ours, module.parameters(), decay)
    named = {name: ours[parameter] for name, parameter in module.named_parameters()}
    expected, found = theirs.module.state_dict(), averaged_state(module, named)
    assert expected.keys() == found.keys()
    assert all(torch.equal(value, found[name]) for name, value in expected.items())


def averaged(module):
    """A block, and its state with averages."""
    averages = {}
    add_to_averages(averages, module.parameters(), 0.9)
    block = block_of(module)
    return block, block_state.collect(block, None, averages)


def test_a_state_with_averages_moves_and_one_without_leaves_none():
    block, state = averaged(net())
    data = state_file.serialize(state)
    assert len(data) <= block_state.max_serialized_bytes(block, CONFIG, averaged=True)
    other, there = block_of(net()), {}
    block_state.restore(other, None, CONFIG, block_state.from_file(other, CONFIG, data, averaged=True), there)
    assert block_state.collect(other, None, there).keys() == state.keys()
    assert all(torch.equal(value, state[name]) for name, value in block_state.collect(other, None, there).items())
    block_state.restore(other, None, CONFIG, block_state.without_optimizer(state), there)
    assert there == {}
    assert not block_state.averages_in(block_state.without_optimizer(state))


def test_averages_of_other_parameters_shapes_and_types_are_refused():
    block, state = averaged(net())
    name = next(iter(name for name in state if name.startswith("average/")))
    with pytest.raises(ProtocolError, match="is unknown"):
        block_state.check(block, CONFIG, state)
    block_state.check(block, CONFIG, state, averaged=True)
    for wrong in (torch.zeros(3, 1), state[name].half()):
        with pytest.raises(ProtocolError, match="it must be"):
            block_state.check(block, CONFIG, state | {name: wrong}, averaged=True)
    with pytest.raises(ProtocolError, match=r"'1.none' is unknown"):
        block_state.check(block, CONFIG, state | {"average/1.none": state[name]}, averaged=True)
    block.module.requires_grad_(False)
    frozen = block_state.collect(block, None) | {name: state[name]}
    with pytest.raises(ProtocolError, match="is unknown"):
        block_state.check(block, CONFIG, frozen, averaged=True)


def test_a_block_that_leaves_takes_its_average_along():
    told = recipe("sgd").model_copy(update={"ema": EmaConfig(decay=0.5)})
    module = net()
    chain = build_chain(module, torch.ones(4, 6))
    held = HeldBlocks(chain, told, CPU, range(len(chain.blocks)))
    for parameter in module.parameters():
        parameter.grad = torch.ones_like(parameter)
    held.update(held.indices, 0)
    state = {name: value.clone() for name, value in held.block_tensors(0).items()}
    assert block_state.averages_in(state)
    held.hold([1, 2], {})
    held.hold([0, 1, 2], {})
    assert not block_state.averages_in(held.block_tensors(0))
    held.hold([1, 2], {})
    held.hold([0, 1, 2], {0: state})
    assert all(torch.equal(value, state[name]) for name, value in held.block_tensors(0).items())
