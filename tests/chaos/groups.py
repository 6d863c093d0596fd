"""One disturbed run of a group: members, their trainers and the links between; all suffer faults, and are started again."""

import asyncio
import json
import random
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack
from functools import cache
from pathlib import Path
from typing import NamedTuple

from safetensors.torch import load_file
from torch import Tensor

from benchmarks.net.relay import Relay
from edge_agent.training.history import read_history
from isthmus import EdgeConfig
from shared.errors import ExitCode
from shared.placement import BlockSlice
from shared.training.step_log import merged_ranks
from tests.chaos import sides
from tests.chaos.faults import Fault, plan
from tests.chaos.links import DELAY_SECONDS, STALL_SECONDS, disturb_links
from tests.chaos.processes import Side, keep_up, tell_threads
from tests.chaos.run import RUN_SECONDS, Outcome, different
from tests.chaos.varieties import (
    BY_BLOCK,
    EARLY_STOP,
    EVERY_TEN_STEPS,
    EXPERIMENT,
    EXTRAS_SHARE,
    PERCEPTRON,
    RECIPES,
    STEPS,
    plan_of_extras,
)
from tests.support.group_members import TookPart, group_state
from tests.support.running import ALLOWED, edge_config, held_port

NAME, CHECKPOINT_STEPS, BATCH_SIZE = "line", 8, 8
SIZES = (2, 3)
SLICED_EVERY = 2
"""Every second span of so many seeds is of models of which some blocks go in slices."""
LATE_EVERY = 4
"""Every second span of so many seeds is of groups with K of 1 to 5, whose members stall and whose links are lost many times."""
STALLS, LATE_LINK_FAULTS = 2, 3
"""Stalls of each of these members, and faults of their links for each fault that is asked for."""
SLICED = (
    'model.factory="shared.model.zoo:mlp"',
    "model.kwargs={depth=4, hidden=362}",
    'training.optimizer={name="adamw", learning_rate=0.003}',
)
"""A model of two blocks of two slices each, at two trainers one of each, and an optimizer that updates slices."""
EXTRAS = RECIPES | {
    "mean of tokens": (
        'data.train={factory="tests.support.samples:PartlyLabelled", kwargs={flat=true}}',
        'training.mean="token"',
    )
}
"""Parts of the recipe that a group may have beside its model, with evaluations by samples of each member's own, and its
own best weights."""
Ranks = Mapping[tuple[int, int, int], Sequence[int]]
"""Ranks whose gradients are in the weights, by step, block and slice."""
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


def has_slices(seed: int) -> bool:
    """Tell whether some blocks go in slices in the run of a seed."""
    return bool(seed // SLICED_EVERY % 2)


def staleness_of(seed: int) -> int:
    """Return K of the run of a seed."""
    return 1 + seed // 5 % 5 if seed // LATE_EVERY % 2 else 0


def draw_extras(seed: int, *, always: bool, joined: bool) -> tuple[str, ...]:
    """Draw the names of a group's extras, by dice of their own: nothing else that a seed draws depends on them.

    joined: by a newcomer, whose samples take their time, and of whose evaluations no loop here has a rate.
    """
    dice = random.Random(f"extras of group {seed}")
    if dice.random() >= EXTRAS_SHARE and not always:
        return ()
    names = [name for name in EXTRAS if dice.random() < 0.5] or ["average"]
    return tuple(name for name in names if name == "average" or not joined)


class Expected(NamedTuple):
    """The outcome of an undisturbed group with K = 0."""

    state: Mapping[str, Tensor]
    average: Mapping[str, Tensor]
    """Average of the weights; empty where the recipe has none."""


def _expected(configs: Sequence[EdgeConfig], took_part: TookPart | None = None) -> Expected:
    average = dict[str, Tensor]()
    return Expected(group_state(configs, took_part, averages=average), average)


@cache
def expected_of(size: int, extras: tuple[str, ...], *, is_sliced: bool) -> Expected:
    """Return the outcome of an undisturbed group of so many."""
    return _expected(_configs(range(size), size, extras, is_sliced=is_sliced))


def _configs(ranks: Iterable[int], size: int, extras: tuple[str, ...], *, is_sliced: bool) -> list[EdgeConfig]:
    addresses = {"near": "127.0.0.1:1"}
    return [
        edge_config(*member_flags(rank, size, addresses, is_sliced=is_sliced), *flags_of_extras(extras, rank))
        for rank in ranks
    ]


def flags_of_extras(extras: Sequence[str], rank: int) -> list[str]:
    """Return the flags of a member's extras, but where it keeps something."""
    if not extras:
        return []
    tested = f'data.test={{factory="tests.support.samples:SomeDigits", kwargs={{rank={rank}}}}}'
    return [*(flag for name in extras for flag in EXTRAS[name]), tested, EVERY_TEN_STEPS, "training.keep_best={}"]


def member_flags(rank: int, size: int, addresses: Mapping[str, str], *, is_sliced: bool) -> list[str]:
    """Return the flags of a member; one of rank `size` joins later. addresses: of the trainers, by name."""
    named = ", ".join(f'{{name="{name}", address="{address}"}}' for name, address in addresses.items())
    return [
        *EXPERIMENT,
        *(SLICED if is_sliced else (*PERCEPTRON, BY_BLOCK)),
        f"data.batch_size={BATCH_SIZE}",
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
            if EARLY_STOP in extras:
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
                    [
                        [
                            *member_flags(rank, size, addresses, is_sliced=is_sliced),
                            *flags_of_extras(extras, rank),
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
        everybody = range(size + outcome.joined)
        if (
            staleness
        ):  # only the order of events decides the bits: all end with the same, and no update is without a member
            same = Expected(_result(folder, 0), {})
            outcome.loss = _lacks_ranks(ranks, range(size), folder) or _loss(folder, same, everybody)
        else:
            of_ranks = _joined(ranks, size, extras, is_sliced=is_sliced) if outcome.joined else None
            right = of_ranks or expected_of(size, extras, is_sliced=is_sliced)
            outcome.loss = _loss(folder, right, everybody)
            if extras and not outcome.joined:
                configs = _configs(range(size), size, extras, is_sliced=is_sliced)
                outcome.loss = outcome.loss or _wrong_samples(folder, size) or _wrong_best(folder, configs)
        if outcome.loss and extras:
            outcome.loss += f" {extras}"
    return outcome


def ranks_by_slice(folder: Path) -> Ranks:
    """Read the ranks whose gradients are in the weights, by step, block and slice, from the logs of all trainers.

    Raises AssertionError where two trainers do not agree on a step.
    """
    found: dict[tuple[int, int, int], tuple[int, ...]] = {}
    for log in sorted((folder / STEPS_OF_TRAINERS).glob(f"*/{NAME}-group.steps")):
        found |= merged_ranks(log.read_text().splitlines())
    for step in {step for step, *_ in found}:
        different = {ranks for (at, *_), ranks in found.items() if at == step}
        assert len(different) == 1, f"step {step} is done by {different} at different trainers ({folder})"
    return found


def has_joined(rank: int, ranks: Ranks) -> bool:
    """Tell whether a rank takes part in any step."""
    return any(rank in of_slice for of_slice in ranks.values())


def _joined(ranks: Ranks, size: int, extras: tuple[str, ...], *, is_sliced: bool) -> Expected:
    """Return the outcome of a group that rank `size` has joined."""

    def took_part(step: int, one: BlockSlice) -> Sequence[int]:
        return ranks[step, *one]

    return _expected(_configs(range(size + 1), size, extras, is_sliced=is_sliced), took_part)


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


def _lacks_ranks(ranks: Ranks, members: Iterable[int], folder: Path) -> str:
    """Tell of which updates a member has no part, or that steps are missing; empty where all have it in all."""
    if missing := set(range(STEPS)).difference(step for step, *_ in ranks):
        return f"steps {sorted(missing)} were not done ({folder})"
    lacking = sorted(at for at, of_slice in ranks.items() if not set(members) <= set(of_slice))
    return f"updates {lacking} are without a member ({folder})" if lacking else ""


def _result(folder: Path, rank: int) -> dict[str, Tensor]:
    return load_file(folder / f"member-{rank}-result" / "model.safetensors")


def _loss(folder: Path, right: Expected, members: Iterable[int]) -> str:
    for rank in members:
        result = folder / f"member-{rank}-result"
        if not (result / "model.safetensors").exists():
            return f"{result.name} is missing ({folder})"
        for name, weights in (("model", right.state), ("ema", right.average)):
            if weights and (wrong := different(result / f"{name}.safetensors", weights)):
                return f"{result.name}: {wrong} ({folder})"
    return ""


def _wrong_samples(folder: Path, size: int) -> str:
    """Judge the samples in the rows of each member; empty where they are those of all steps, whoever was killed."""
    for rank in range(size):
        for row in read_history(folder / f"member-{rank}-result"):
            if row.samples != row.step * BATCH_SIZE:
                return f"row {row.step} of member {rank} has {row.samples} samples ({folder})"
    return ""


def _wrong_best(folder: Path, configs: Sequence[EdgeConfig]) -> str:
    """Judge the best weights of each member; empty where they are those of the loop at its best evaluation."""
    for rank in range(len(configs)):
        result = folder / f"member-{rank}-result"
        best = min(
            (row for row in read_history(result) if row.test_loss is not None), key=lambda row: row.test_loss or 0.0
        ).step
        training = configs[0].training.model_copy(update={"max_steps": best})
        state = group_state([config.model_copy(update={"training": training}) for config in configs])
        if wrong := different(result / "best.safetensors", state):
            return f"{result.name}: {wrong} of step {best} ({folder})"
    return ""
