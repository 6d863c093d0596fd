"""One disturbed run of a group: members, their trainers and the links between; all suffer faults, and are started again."""

import asyncio
import json
import random
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path

from safetensors.torch import load_file
from torch import Tensor

from benchmarks.net.relay import Relay
from edge_agent import EdgeConfig
from shared.errors import ExitCode
from shared.training.step_log import merged_ranks
from tests.chaos import sides
from tests.chaos.faults import Fault, plan
from tests.chaos.links import DELAY_SECONDS, STALL_SECONDS, disturb_links
from tests.chaos.processes import Side, keep_up, tell_threads
from tests.chaos.run import RUN_SECONDS, Outcome
from tests.chaos.varieties import BY_BLOCK, EXPERIMENT, PERCEPTRON
from tests.support.group_members import group_state
from tests.support.running import ALLOWED, edge_config, held_port

NAME, CHECKPOINT_STEPS = "line", 8
SIZES = (2, 3)
NEWCOMERS_EVERY = 10
"""Every second span of so many seeds is of groups that a newcomer joins."""
SLOWLY = 'data.train={factory="tests.support.samples:Slow", kwargs={seconds=0.05}}'
"""Samples of members that take long enough for another one to join."""
STEPS_OF_TRAINERS = "steps"
"""Folder of the trainers' logs."""
POLL_SECONDS = 0.05
SHARD = 'data.shard="rank"'
LINK_FAULTS = (Fault.DROP_LINK, Fault.HALF_OPEN, Fault.DELAY)
"""Without damaged bytes: a member opens sessions again and again, and without TLS these calls have no checksum."""


def expected_groups() -> dict[int, dict[str, Tensor]]:
    """Return the weights with which an undisturbed group ends, by its size."""
    return {size: group_state(_configs(range(size), size)) for size in SIZES}


def _configs(ranks: Iterable[int], size: int) -> list[EdgeConfig]:
    return [edge_config(*member_flags(rank, size, {"near": "127.0.0.1:1"})) for rank in ranks]


def member_flags(rank: int, size: int, addresses: Mapping[str, str]) -> list[str]:
    """Return the flags of a member; one of rank `size` joins later. addresses: of the trainers, by name."""
    named = ", ".join(f'{{name="{name}", address="{address}"}}' for name, address in addresses.items())
    return [
        *EXPERIMENT,
        *PERCEPTRON,
        BY_BLOCK,
        "data.batch_size=8",
        *([SHARD] if rank < size else []),
        f'group={{name="{NAME}", rank={rank}, size={size}}}',
        f"trainers=[{named}]",
        f"privacy.gradients_to={json.dumps(list(addresses))}",
        f"link.stall_seconds={STALL_SECONDS}",
        "control.listen=none",
    ]


def _trainer_flags(folder: Path, name: str, port: int, size: int, most: int) -> list[str]:
    return [
        f"server.listen=127.0.0.1:{port}",
        f"models.allowed={ALLOWED}",
        "compute.threads=1",
        'compute.device="cpu"',
        "control.listen=none",
        f"checkpoints.location={folder / name}",
        f"checkpoints.step_log={folder / STEPS_OF_TRAINERS / name}",
        f"link.stall_seconds={STALL_SECONDS}",
        "server.accept_inputs=true",
        f'groups=[{{name="{NAME}", size={size}, most={most}, checkpoint_steps={CHECKPOINT_STEPS}}}]',
    ]


async def disturbed_group(
    seed: int, folder: Path, expected: Mapping[int, Mapping[str, Tensor]], faults: int
) -> Outcome:
    """Run a group with about so many faults, drawn from `seed`. expected: see `expected_groups`."""
    dice = random.Random(seed)
    names, size = ("near", "far")[: 1 + seed % 2], dice.choice(SIZES)
    outcome = Outcome(seed, 0, len(names), shared=None, members=size)
    with ExitStack() as ports:  # held, or another process would be given one while its trainer is dead
        places = {name: ports.enter_context(held_port()) for name in names}
        async with AsyncExitStack() as stack:
            relays = {
                name: await stack.enter_async_context(Relay("127.0.0.1", port, one_way_delay_seconds=DELAY_SECONDS))
                for name, port in places.items()
            }
            addresses = {name: relay.address for name, relay in relays.items()}
            on_link = dice.randint(0, faults // 3)
            suffering = [dice.choice([*names, *range(size)]) for _ in range(faults - on_link)]
            planned = {name: plan(dice, "group", suffering.count(name), 1) for name in names}
            of_members = [plan(dice, "member", suffering.count(rank), 1) for rank in range(size)]
            slowly: list[str] = []
            if has_newcomer := bool(seed // NEWCOMERS_EVERY % 2):
                slowly = [SLOWLY]
                of_members.append(plan(dice, "newcomer", dice.randint(1, 3), 1))
                admitting = planned[dice.choice(names)]
                at = dice.choice([0, len(admitting)])  # before its other faults, or after them
                admitting[at:at] = plan(dice, "admitting", 1, 1)
            trainers = [
                Side(
                    sides.trainer,
                    [_trainer_flags(folder, name, port, size, len(of_members)), name],
                    planned[name],
                    folder,
                    name,
                )
                for name, port in places.items()
            ]
            members = [
                Side(
                    sides.member,
                    [[*member_flags(rank, size, addresses), *slowly], f"member-{rank}"],
                    of_member,
                    folder,
                    f"member-{rank}",
                )
                for rank, of_member in enumerate(of_members)
            ]
            newcomer = members.pop() if has_newcomer else None
            running = _Running(folder, trainers, members, newcomer)
            disturbing = disturb_links(
                list(relays.values()), dice, on_link, outcome.faults, folder / "member-0.log", LINK_FAULTS
            )
            outcome.loss = await running.until_all_have_ended(disturbing)
    for side in running.everybody:
        outcome.faults.update(fault for fault, _ in side.fired)
        outcome.points.update(point for _, point in side.fired)
    outcome.restarts = sum(max(side.starts - 1, 0) for side in running.everybody)
    if not outcome.loss:
        ranks = ranks_by_block(folder)
        outcome.joined = has_joined(size, ranks)
        whole = _joined_state(ranks, size) if outcome.joined else expected[size]
        outcome.loss = _loss(folder, whole, range(size + outcome.joined))
    return outcome


def ranks_by_block(folder: Path) -> dict[tuple[int, int], tuple[int, ...]]:
    """Read the ranks whose gradients are in the weights, by step and block, from the logs of all trainers.

    Raises AssertionError where two trainers do not agree on a step.
    """
    found: dict[tuple[int, int], tuple[int, ...]] = {}
    for log in sorted((folder / STEPS_OF_TRAINERS).glob(f"*/{NAME}-group.steps")):
        found |= merged_ranks(log.read_text().splitlines())
    for step in {step for step, _ in found}:
        different = {ranks for (at, _), ranks in found.items() if at == step}
        assert len(different) == 1, f"step {step} is done by {different} at different trainers ({folder})"
    return found


def has_joined(rank: int, ranks: Mapping[tuple[int, int], Sequence[int]]) -> bool:
    """Tell whether a rank takes part in any step."""
    return any(rank in of_block for of_block in ranks.values())


def _joined_state(ranks: Mapping[tuple[int, int], Sequence[int]], size: int) -> dict[str, Tensor]:
    """Return the weights with which a group ends that rank `size` has joined."""
    return group_state(_configs(range(size + 1), size), lambda step, block: ranks[step, block])


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
            if joining is not None and has_joined(len(self._members), ranks_by_block(self._folder)):
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


def _loss(folder: Path, expected: Mapping[str, Tensor], members: Iterable[int]) -> str:
    for rank in members:
        result = folder / f"member-{rank}-result"
        if not result.exists():
            return f"{result.name} is missing ({folder})"
        found = load_file(result / "model.safetensors")
        if different := [name for name, tensor in expected.items() if not found[name].equal(tensor)]:
            return f"{result.name}: {different} differ ({folder})"
    return ""
