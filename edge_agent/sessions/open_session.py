"""An open session of a placement: its state, its trainers, its coordinator, and this agent's patience with an absent one."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from functools import partial

from torch import Tensor

from edge_agent.coordinator import Coordinator, CoordinatorState
from edge_agent.sessions.membership import Membership, MemberStatus
from edge_agent.sessions.messages import FAREWELL_SECONDS
from edge_agent.sessions.session_state import SessionState
from shared.client.retry import Retry
from shared.concurrency.tasks import gathered, meanwhile
from shared.errors import IsthmusError
from shared.placement import Placement, PlacementPlan
from shared.training import block_state
from shared.training.held_state import changing_blocks

REMINDER_SECONDS = 15.0
"""Interval of reminders, well below the time that a trainer keeps an unused session before it is joined
(server.unattached_seconds)."""


class OpenSession:
    """A session that this agent has opened on all trainers with a part in it. Used on the event loop."""

    def __init__(self, state: SessionState, members: Membership, retry: Retry) -> None:
        """retry: the wait for a trainer that is away."""
        self.state = state
        self.stored, self.experiment, self.threads = state.stored, state.experiment, state.threads
        self.members = members
        """Its trainers."""
        self.retry = retry
        self.coordinator = Coordinator(CoordinatorState(waits=retry.give_up_seconds != 0))

    @property
    def id(self) -> str:
        """Return the id of the session on this device."""
        return self.stored.record.session_id

    @property
    def placement(self) -> Placement:
        """Return the placement in force."""
        return self.state.placement

    def put_into_force(self, plan: PlacementPlan) -> None:
        """Continue under a placement that is in force at every worker. The workers with its blocks are then needed."""
        self.state.plan = plan
        self.members.need(trainer.name for trainer in self.members.holders(plan.placement))

    async def collect(self, *, averaged: bool = False) -> dict[str, Tensor]:
        """Download the weights of blocks on other workers, so that the user's module is whole.

        averaged: with the averages of all weights, which are returned by the names of their parameters. Raises ModelError
        where training has changed frozen parameters, which no worker gives.
        """
        chain, held, averages = self.experiment.chain, self.experiment.held, dict[str, Tensor]()
        config = held.recipe.optimizer_of_states if averaged else None
        await self.retry.run(partial(self.check_frozen, range(len(chain.blocks))))
        for index in held.indices if averaged else ():
            averages |= block_state.averages_in(held.block_tensors(index))
        for block in (chain.blocks[index] for index in changing_blocks(chain)):
            if (owner := self.members.get(self.placement.owner(block.index))) is not None:
                data = await self.retry.run(partial(owner.download, block.index, weights_only=not averaged))
                read = partial(block_state.from_file, block, config, data, averaged=averaged)
                tensors = await self.threads.compute.run(read)
                averages |= block_state.averages_in(tensors)
                weights = block_state.without_optimizer(tensors)
                await self.threads.compute.run(block_state.restore, block, None, None, weights)
        return averages

    async def check_frozen(self, blocks: Iterable[int]) -> None:
        """Ask the owners of blocks of which no state travels whether training has changed frozen parameters there.

        Raises ModelError where it has, and the IsthmusError of a failed call.
        """
        chain = self.experiment.chain
        await self.threads.compute.run(self.experiment.held.check_frozen)
        for index in sorted(set(blocks).difference(changing_blocks(chain))):
            owner = self.members.get(self.placement.owner(index))
            if owner is not None and chain.blocks[index].frozen:
                await owner.download(index, weights_only=True)  # the state is empty, and to give it is to look

    @asynccontextmanager
    async def keep_alive(self) -> AsyncIterator[None]:
        """Remind trainers without a link of the session while the body runs: without a call they would free it in the end."""

        async def remind() -> None:
            while True:
                await asyncio.sleep(REMINDER_SECONDS)
                linked = self.members.holders(self.placement) if self.stored.session_term else []
                for trainer in set(self.members.values()).difference(linked):
                    if self.members.status(trainer.name) is not MemberStatus.ABSENT:
                        with suppress(IsthmusError):  # The next call that needs the session reports the error.
                            await trainer.remind()

        async with meanwhile(remind()):
            yield

    async def max_staleness(self) -> int:
        """Return the largest K that every trainer with blocks allows the session; no limit if there is none."""
        answers = await gathered(*(trainer.remind() for trainer in self.members.holders(self.placement)))
        return min((answer.max_staleness for answer in answers), default=2**31)

    async def abandon(self) -> None:
        """End the session after a failure. If all workers have a checkpoint, the trainers keep theirs; a group goes on.

        An error of this call is dropped, because the first failure matters.
        """
        is_member = self.experiment.config.member is not None
        with suppress(IsthmusError, TimeoutError):
            async with asyncio.timeout(FAREWELL_SECONDS):
                await self.close(resumable=is_member or self.stored.shared is not None)

    async def close(self, *, resumable: bool = False) -> None:
        """End the session at every trainer: for good, or so that a longer run can go on from the checkpoint. Tries once.

        Raises the IsthmusError of one with blocks, once all were told; the others forget the session by themselves, later.
        """
        everybody, holding = self.members.everybody.values(), self.members.holders(self.placement)
        ending = [trainer.end(resumable=resumable) for trainer in everybody]
        for trainer, outcome in zip(everybody, await asyncio.gather(*ending, return_exceptions=True), strict=True):
            if isinstance(outcome, BaseException) and (trainer in holding or not isinstance(outcome, IsthmusError)):
                raise outcome
