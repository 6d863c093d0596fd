"""One disturbed run of a group: members, their trainers and the links between; all suffer faults, and are started again."""

import asyncio
import json
import random
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path

from safetensors.torch import load_file
from torch import Tensor

from benchmarks.net.relay import Relay
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
LINK_FAULTS = (Fault.DROP_LINK, Fault.HALF_OPEN, Fault.DELAY)
"""Without damaged bytes: a member opens sessions again and again, and without TLS these calls have no checksum."""


def expected_groups() -> dict[int, dict[str, Tensor]]:
    """Return the weights with which an undisturbed group ends, by its size."""
    return {
        size: group_state([edge_config(*member_flags(rank, size, {"near": "127.0.0.1:1"})) for rank in range(size)])
        for size in SIZES
    }


def member_flags(rank: int, size: int, addresses: Mapping[str, str]) -> list[str]:
    """Return the flags of a member. addresses: of the trainers, by name."""
    named = ", ".join(f'{{name="{name}", address="{address}"}}' for name, address in addresses.items())
    return [
        *EXPERIMENT,
        *PERCEPTRON,
        BY_BLOCK,
        "data.batch_size=8",
        'data.shard="rank"',
        f'group={{name="{NAME}", rank={rank}, size={size}}}',
        f"trainers=[{named}]",
        f"privacy.gradients_to={json.dumps(list(addresses))}",
        f"link.stall_seconds={STALL_SECONDS}",
        "control.listen=none",
    ]


def _trainer_flags(folder: Path, name: str, port: int, size: int) -> list[str]:
    return [
        f"server.listen=127.0.0.1:{port}",
        f"models.allowed={ALLOWED}",
        "compute.threads=1",
        'compute.device="cpu"',
        "control.listen=none",
        f"checkpoints.location={folder / name}",
        f"link.stall_seconds={STALL_SECONDS}",
        "server.accept_inputs=true",
        f'groups=[{{name="{NAME}", size={size}, checkpoint_steps={CHECKPOINT_STEPS}}}]',
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
            trainers = [
                Side(
                    sides.trainer,
                    [_trainer_flags(folder, name, port, size), name],
                    plan(dice, "group", suffering.count(name), 1),
                    folder,
                    name,
                )
                for name, port in places.items()
            ]
            members = [
                Side(
                    sides.member,
                    [member_flags(rank, size, addresses), f"member-{rank}"],
                    plan(dice, "member", suffering.count(rank), 1),
                    folder,
                    f"member-{rank}",
                )
                for rank in range(size)
            ]
            await _until_all_have_ended(trainers, members, list(relays.values()), dice, on_link, outcome, folder)
    for side in (*trainers, *members):
        outcome.faults.update(fault for fault, _ in side.fired)
        outcome.points.update(point for _, point in side.fired)
    outcome.restarts = sum(side.starts - 1 for side in (*trainers, *members))
    outcome.loss = outcome.loss or _loss(folder, expected[size])
    return outcome


async def _until_all_have_ended(
    trainers: Sequence[Side],
    members: Sequence[Side],
    relays: Sequence[Relay],
    dice: random.Random,
    on_link: int,
    outcome: Outcome,
    folder: Path,
) -> None:
    for side in (*trainers, *members):
        side.start()
    tasks = [asyncio.create_task(keep_up(trainer)) for trainer in trainers]
    log = folder / "member-0.log"
    tasks.append(asyncio.create_task(disturb_links(relays, dice, on_link, outcome.faults, log, LINK_FAULTS)))
    try:
        async with asyncio.timeout(RUN_SECONDS):
            await asyncio.gather(*(_to_the_end(member) for member in members))
    except TimeoutError:
        outcome.loss = f"the run hangs ({folder})"
        await tell_threads((*trainers, *members))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for side in (*trainers, *members):
            side.kill()


async def _to_the_end(member: Side) -> None:
    while await member.ended() != 0:
        member.start()


def _loss(folder: Path, expected: Mapping[str, Tensor]) -> str:
    for result in sorted(folder.glob("member-*-result")):
        found = load_file(result / "model.safetensors")
        if different := [name for name, tensor in expected.items() if not found[name].equal(tensor)]:
            return f"{result.name}: {different} differ ({folder})"
    return ""
