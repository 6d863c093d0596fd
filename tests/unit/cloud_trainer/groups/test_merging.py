"""The last copy of a group's state has every update, also one whose caller went away while it ran."""

import asyncio
import copy
import threading
from contextlib import suppress

import pytest

from cloud_trainer.config import GroupConfig
from cloud_trainer.groups.agreement import Agreement
from cloud_trainer.groups.lives import Life
from cloud_trainer.groups.merging import GroupFigures, Merging
from shared.concurrency.shared_worker import SharedWorker
from shared.execution.group_weights import GroupWeights
from shared.execution.shared_blocks import weights_of
from shared.execution.step_in_flight import Outgoing
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

    def update(self, *of):
        self.begun.set()
        assert self.go_on.wait(30)
        super().update(*of)


@pytest.mark.parametrize("checkpoint_steps", [1, 100])
async def test_a_copy_has_an_update_that_nobody_waited_for(checkpoint_steps):
    module, told = built("dropping"), recipe("sgd")
    chain = chain_of(copy.deepcopy(module))
    held = Held(chain, told, CPU, range(len(chain.blocks)))
    worker = SharedWorker("compute")
    agreement = Agreement(pb.OpenSessionRequest(group=pb.GroupSeat(steps=1000)), told, 0, held.indices)
    merging = Merging(
        GroupWeights(held),
        agreement,
        worker.of("group"),
        GroupConfig(name="line", size=1),
        Life(1, None, 0, checkpoint_steps, {0: 0}),
        GroupFigures(),
    )
    await merging.take_seat(0, 0)
    blocks, whole = changing_blocks(chain), Rows(0, SAMPLES)

    async def give(block):
        gradient = {
            f"gradient/{name.partition('/')[2]}": value.clone()
            for name, value in weights_of(chain.blocks[block]).items()
        }
        crossing = Crossing("edge", "near", Cargo.WEIGHT_GRADIENT, block, whole)
        return await merging.merge(0, Outgoing(0, SAMPLES, crossing, gradient))

    try:
        giving = [asyncio.create_task(give(block)) for block in reversed(blocks)]
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
        worker.close()
