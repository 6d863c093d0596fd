"""This device's blocks through changes of placement: received blocks count from the commit on, and are dropped without
a commit."""

from types import SimpleNamespace

import pytest
import torch

from edge_agent.sessions.device_worker import DeviceWorker
from edge_agent.sessions.worker_calls import Change, Transfer
from shared.errors import ProtocolError
from shared.placement import two_workers
from shared.training import block_state, state_file
from shared.training.held_blocks import HeldBlocks
from tests.support.placed import CPU, built, chain_of, recipe
from tests.support.virtual import InlineWorker

BLOCKS = 4


class Placed:
    """A record of the steps from which the device computes."""

    def __init__(self):
        self.first_steps = []

    async def place(self, _plan, first_step):
        self.first_steps.append(first_step)


class Trainer:
    """A trainer with all blocks, whose weights are all one number."""

    def __init__(self, value):
        self.held = HeldBlocks(chain_of(built("dropping")), recipe("adam"), CPU, range(BLOCKS))
        self.taken = {}
        for parameter in self.held.chain.module.parameters():
            torch.nn.init.constant_(parameter, value)

    async def download(self, block, *, weights_only, checkpoint):
        assert checkpoint is None
        tensors = self.held.block_tensors(block)
        return state_file.serialize(block_state.without_optimizer(tensors) if weights_only else tensors)

    async def take(self, block, state, _checkpoint):
        self.taken[block] = block_state.from_file(self.held.chain.blocks[block], self.held.recipe.optimizer, state)


def mean_of(device, block):
    weights = device.held.chain.blocks[block].named_parameters().values()
    return torch.cat([parameter.flatten() for parameter in weights]).mean().item()


def change_to(cut, next_step=3):
    return Change(SimpleNamespace(placement=two_workers("edge", "gpu", cut, BLOCKS, 8)), next_step)


@pytest.fixture
def device():
    held, inline = HeldBlocks(chain_of(built("dropping")), recipe("adam"), CPU, range(2)), InlineWorker()
    state = SimpleNamespace(
        experiment=SimpleNamespace(held=held),
        threads=SimpleNamespace(compute=inline, disk=inline),
        stored=SimpleNamespace(store=None),
    )
    worker = DeviceWorker(state, placed := Placed())
    return SimpleNamespace(worker=worker, held=held, placed=placed)


async def bring(calls):
    for call in calls:
        await call()


async def test_blocks_that_have_come_count_from_the_commit_on(device):
    before, change = mean_of(device, 2), change_to(3)
    await bring(device.worker.fetch(Trainer(0.5), Transfer({2: False})))
    assert mean_of(device, 2) == before != 0.5
    await device.worker.prepare(change)
    await device.worker.commit(change)
    assert device.held.indices == (0, 1, 2)
    assert mean_of(device, 2) == 0.5
    assert device.placed.first_steps == [3]


async def test_blocks_of_a_failed_change_are_in_no_later_one(device):
    await bring(device.worker.fetch(Trainer(0.5), Transfer({2: False})))
    await device.worker.give_up()
    await bring(device.worker.fetch(Trainer(0.25), Transfer({3: False})))
    change = change_to(4, next_step=5)
    await device.worker.prepare(change)
    await device.worker.commit(change)
    assert mean_of(device, 2) != 0.5
    assert mean_of(device, 3) == 0.25


@pytest.mark.parametrize("weights_only", [True, False])
async def test_the_optimizer_goes_with_a_block_where_its_update_goes(device, weights_only):
    for parameter in device.held.chain.module.parameters():
        parameter.grad = torch.ones_like(parameter)
    device.held.update([0, 1], 0)
    trainer = Trainer(0.0)
    await bring(device.worker.give(trainer, Transfer({1: weights_only})))
    assert list(trainer.taken) == [1]
    assert (trainer.taken[1].keys() == device.held.block_tensors(1).keys()) is not weights_only


async def test_a_state_of_another_block_makes_no_change(device):
    await device.worker.take(2, state_file.serialize(Trainer(0.5).held.block_tensors(0)), None)
    with pytest.raises(ProtocolError):
        await device.worker.prepare(change_to(3))
    await device.worker.give_up()
    assert device.held.indices == (0, 1)
