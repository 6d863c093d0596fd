"""One disturbed run of a group: members, their trainers and the links between; all suffer faults, and are started again."""

import asyncio
import random
from collections.abc import Coroutine, Sequence
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path

from benchmarks.net.relay import Relay
from shared.errors import ExitCode
from tests.chaos import sides
from tests.chaos.faults import Fault, plan
from tests.chaos.group_losses import has_joined, loss_of, ranks_by_slice
from tests.chaos.group_varieties import (
    FINISH,
    NAME,
    SLOWLY,
    STEPS_OF_TRAINERS,
    asked_after,
    draw_extras,
    flags_of_extras,
    has_slices,
    member_flags,
    staleness_of,
    trainer_flags,
)
from tests.chaos.links import DELAY_SECONDS, disturb_links
from tests.chaos.processes import Side, keep_up, tell_threads
from tests.chaos.run import RUN_SECONDS, Outcome
from tests.chaos.varieties import EARLY_STOP, plan_of_extras
from tests.support.running import held_port

SIZES = (2, 3)
STALLS, LATE_LINK_FAULTS = 2, 3
"""Stalls of each of these members, and faults of their links for each fault that is asked for."""
NEWCOMERS_EVERY = 10
"""Every second span of so many seeds is of groups that a newcomer joins."""
POLL_SECONDS = 0.05
LINK_FAULTS = (Fault.DROP_LINK, Fault.HALF_OPEN, Fault.DELAY)
"""Without damaged bytes: a member opens sessions again and again, and without TLS these calls have no checksum."""


async def disturbed_group(seed: int, folder: Path, faults: int, *, with_extras: bool = False) -> Outcome:
    """Run a group with about so many faults, drawn from `seed`. with_extras: has some for sure."""
    dice = random.Random(seed)
    names, size, is_sliced = ("near", "far")[: 1 + seed % 2], dice.choice(SIZES), has_slices(seed)
    staleness = staleness_of(seed)
    has_newcomer = bool(seed // NEWCOMERS_EVERY % 2)
    extras = draw_extras(seed, always=with_extras, joined=has_newcomer or staleness > 0)
    outcome = Outcome(seed, staleness, len(names), shared=None, members=size, extras=extras)
    with ExitStack() as ports:  # held, or another process would be given one while its trainer is dead
        places = {name: ports.enter_context(held_port()) for name in names}
        async with AsyncExitStack() as stack:
            relays = {
                name: await stack.enter_async_context(Relay("127.0.0.1", port, one_way_delay_seconds=DELAY_SECONDS))
                for name, port in places.items()
            }
            addresses = {name: relay.address for name, relay in relays.items()}
            on_link = dice.randint(0, faults // 3)
            of_late_links = LATE_LINK_FAULTS * faults if staleness else 0
            suffering = [dice.choice([*names, *range(size)]) for _ in range(faults - on_link)]
            planned = {name: plan(dice, "group", suffering.count(name), 1) for name in names}
            of_members = [plan(dice, "member", suffering.count(rank), 1) for rank in range(size)]
            of_members[-1] += plan_of_extras(seed, extras)
            if {EARLY_STOP, FINISH}.intersection(extras):
                ending = random.Random(f"ending {seed}")
                planned[ending.choice(names)] += plan(ending, "ending", 1, 1)
                ending.choice(of_members).extend(plan(ending, "judging", ending.randint(0, 1), 1))
            if is_sliced:
                planned[dice.choice(names)] += plan(dice, "slices", 1, 1)
                dice.choice(of_members).extend(plan(dice, "giving", 1, 1))
            slowly: list[str] = []
            if staleness:
                slowly = [SLOWLY]
                for of_member in of_members:
                    of_member += plan(dice, "stalling", STALLS, 1)
            if has_newcomer:
                slowly = [SLOWLY]
                of_members.append(plan(dice, "newcomer", dice.randint(1, 3), 1))
                admitting = planned[dice.choice(names)]
                at = dice.choice([0, len(admitting)])  # before its other faults, or after them
                admitting[at:at] = plan(dice, "admitting", 1, 1)
            trainers = [
                Side(
                    sides.trainer,
                    [trainer_flags(folder, name, port, size, len(of_members)), name],
                    planned[name],
                    folder,
                    name,
                )
                for name, port in places.items()
            ]
            members = [
                Side(
                    sides.member,
                    [
                        [
                            *member_flags(rank, size, addresses, is_sliced=is_sliced),
                            *flags_of_extras(extras, rank),
                            *asked_after(seed, rank, size, extras),
                            *slowly,
                            f"checkpoints.location={folder / f'member-{rank}-kept'}",
                            f"output.directory={folder / f'member-{rank}-result'}",
                            f"deployment.staleness={staleness}",
                        ],
                        f"member-{rank}",
                    ],
                    of_member,
                    folder,
                    f"member-{rank}",
                )
                for rank, of_member in enumerate(of_members)
            ]
            newcomer = members.pop() if has_newcomer else None
            running = _Running(folder, trainers, members, newcomer)
            disturbing = disturb_links(
                list(relays.values()),
                dice,
                on_link + of_late_links,
                outcome.faults,
                folder / "member-0.log",
                LINK_FAULTS,
            )
            outcome.loss = await running.until_all_have_ended(disturbing)
    for side in running.everybody:
        outcome.faults.update(fault for fault, _ in side.fired)
        outcome.points.update(point for _, point in side.fired)
    outcome.restarts = sum(max(side.starts - 1, 0) for side in running.everybody)
    if not outcome.loss:
        ranks = ranks_by_slice(folder)
        outcome.joined = has_joined(size, ranks)
        outcome.loss = loss_of(folder, outcome, ranks, is_sliced=is_sliced)
        if outcome.loss and extras:
            outcome.loss += f" {extras}"
    return outcome


class _Running:
    """The processes of one run."""

    def __init__(self, folder: Path, trainers: Sequence[Side], members: Sequence[Side], newcomer: Side | None) -> None:
        """newcomer: one more member, which joins while the group trains."""
        self._folder = folder
        self._trainers, self._members, self._newcomer = trainers, members, newcomer
        self.everybody = [*trainers, *members, *([] if newcomer is None else [newcomer])]

    async def until_all_have_ended(self, disturbing: Coroutine[None, None, None]) -> str:
        """Keep all up until the members have ended, and disturb their links meanwhile; returns what is lost."""
        for side in (*self._trainers, *self._members):
            side.start()
        tasks = [asyncio.create_task(keep_up(trainer)) for trainer in self._trainers]
        tasks.append(asyncio.create_task(disturbing))
        try:
            async with asyncio.timeout(RUN_SECONDS):
                await self._members_end()
        except TimeoutError:
            await tell_threads([side for side in self.everybody if side.starts])
            return f"the run hangs ({self._folder})"
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for side in self.everybody:
                side.kill()
        return ""

    async def _members_end(self) -> None:
        joining = None if self._newcomer is None else asyncio.create_task(self._joins(self._newcomer))
        try:
            await asyncio.gather(*(_to_the_end(member) for member in self._members))
            # One that has not joined by then never will: nobody waits for it.
            if joining is not None and has_joined(len(self._members), ranks_by_slice(self._folder)):
                await joining
        finally:
            if joining is not None:
                joining.cancel()
                await asyncio.gather(joining, return_exceptions=True)

    async def _joins(self, newcomer: Side) -> None:
        while not any((self._folder / STEPS_OF_TRAINERS).glob(f"*/{NAME}-group.steps")):  # noqa: ASYNC110
            await asyncio.sleep(POLL_SECONDS)
        newcomer.start()
        while await newcomer.ended() not in (0, ExitCode.REFUSED):  # refused where no step is left for it
            newcomer.start()


async def _to_the_end(member: Side) -> None:
    while await member.ended() != 0:
        member.start()
