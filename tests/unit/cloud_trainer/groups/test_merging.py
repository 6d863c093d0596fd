"""The last copy of a group's state has every update, also one whose caller went away while it ran."""

import asyncio
import copy
import threading
from contextlib import suppress

import pytest

from cloud_trainer.config import GroupConfig
from cloud_trainer.groups import merging as merging_module
from cloud_trainer.groups.agreement import Agreement
from cloud_trainer.groups.group_weights import GroupWeights
from cloud_trainer.groups.lives import Life
from cloud_trainer.groups.merging import GroupFigures, Merging
from cloud_trainer.sessions.shared_thread import SharedThread
from shared.execution.shared_blocks import weights_of
from shared.execution.step_in_flight import Parcel
from shared.placement import Cargo, Crossing, Rows
from shared.training.held_blocks import HeldBlocks
from shared.training.held_state import changing_blocks
from shared.wire.isthmus.v1 import trainer_pb2 as pb
from tests.support.group_members import SAMPLES
from tests.support.placed import CPU, built, chain_of, recipe


class Held(HeldBlocks):
    """Blocks whose updates wait."""

    def __init__(self, *of):
        super().__init__(*of)
        self.begun, self.go_on = threading.Event(), threading.Event()

    def update(self, *of, **told):
        self.begun.set()
        assert self.go_on.wait(30)
        super().update(*of, **told)


def gradient_of(chain, block, step):
    """Return what a member gives of a block."""
    weights = weights_of(chain.blocks[block])
    gradient = {f"gradient/{name.partition('/')[2]}": value.clone() for name, value in weights.items()}
    crossing = Crossing("edge", "near", Cargo.WEIGHT_GRADIENT, block, Rows(0, SAMPLES))
    return Parcel(step, SAMPLES, crossing, gradient)


@pytest.mark.parametrize("checkpoint_steps", [1, 100])
async def test_a_copy_has_an_update_that_nobody_waited_for(checkpoint_steps):
    module, told = built("dropping"), recipe("sgd")
    chain = chain_of(copy.deepcopy(module))
    held = Held(chain, told, CPU, range(len(chain.blocks)))
    thread = SharedThread("compute")
    agreement = Agreement(pb.OpenSessionRequest(group=pb.GroupSeat(steps=1000)), told, 0, held.indices)
    merging = Merging(
        GroupWeights(held),
        agreement,
        thread.of("group"),
        GroupConfig(name="line", size=1),
        Life(1, None, 0, checkpoint_steps, {0: 0}),
        GroupFigures(),
    )
    await merging.take_seat(0, 0)

    async def give(block):
        return await merging.merge(0, gradient_of(chain, block, 0))

    try:
        giving = [asyncio.create_task(give(block)) for block in reversed(changing_blocks(chain))]
        await asyncio.to_thread(held.begun.wait, 30)
        copying = asyncio.create_task(merging.copy_now())
        giving[0].cancel()  # runs, so that it ends all the same; the others wait for their turn
        held.go_on.set()
        with suppress(asyncio.CancelledError):
            await giving[0]
        await asyncio.gather(*giving[1:])
        copied = await copying
        assert copied is not None
        assert copied.step == 1
        assert await merging.copy_now() is None, "the same state was copied twice"
    finally:
        held.go_on.set()
        thread.close()


async def test_each_rank_waits_from_its_last_gradient_until_all_is_updated(monkeypatch):
    module, told = built("dropping"), recipe("sgd")
    chain = chain_of(copy.deepcopy(module))
    held = HeldBlocks(chain, told, CPU, range(len(chain.blocks)))
    thread, figures = SharedThread("compute"), GroupFigures()
    agreement = Agreement(pb.OpenSessionRequest(group=pb.GroupSeat(steps=1000)), told, 0, held.indices)
    now = [0.0]
    monkeypatch.setattr(merging_module, "monotonic", lambda: now[0])
    merging = Merging(
        GroupWeights(held),
        agreement,
        thread.of("group"),
        GroupConfig(name="line", size=2),
        Life(1, None, 0, 100, {0: 0, 1: 0}),
        figures,
    )
    for rank in (0, 1):
        await merging.take_seat(rank, 0)

    async def give(rank, step, seconds):
        now[0] = seconds
        for block in reversed(changing_blocks(chain)):
            await merging.merge(rank, gradient_of(chain, block, step))

    try:
        await give(0, 0, 1.0)
        assert not figures.waited, "the step is not done"
        await give(1, 0, 4.0)
        assert figures.waited == {0: 3.0, 1: 0.0}
        await give(1, 1, 5.0)
        await give(0, 1, 7.5)
        assert figures.waited == {0: 3.0, 1: 2.5}
    finally:
        thread.close()
