"""One disturbed run: an agent, its trainers and the links between; each suffers faults, and is started again when it dies."""

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from safetensors.torch import load_file

from benchmarks.net.relay import Relay
from shared.errors import StepLogError
from shared.training.step_log import check_steps
from tests.chaos import sides
from tests.chaos.faults import LOST_DISKS, Fault, plan
from tests.chaos.links import DELAY_SECONDS, STALL_SECONDS, disturb_links
from tests.chaos.order import Worst, exceeds, worst
from tests.chaos.placements import (
    BLOCKS,
    Document,
    Shared,
    draw,
    draw_changes,
    three_tiers,
    two_parts,
    with_a_stateless,
)
from tests.chaos.processes import Side, keep_up, tell_threads
from tests.chaos.varieties import EXPERIMENT, STEPS, VARIETIES, Expected
from tests.support.running import ALLOWED, held_port

CHANGES_AT = (7, 20, 33, 46, 60)
STATELESS, STATELESS_EVERY = "far", 5
"""The trainer that alone is killed in every run whose seed is a multiple of this."""
CANDIDATES_AT = 3
"""Remainder of the seeds of runs among candidates, by the same divisor: they are handed over, and their trainers die."""
DEATHS, REPLACE_SECONDS, DEAD_SECONDS = 2, 1.0, 10.0
"""Number of deaths in such a run, the time after which a trainer is replaced, and the longest time that one stays dead: an
agent that has died too waits for it."""
DEATHS_OF_THE_HOLDER = 0.7
"""Share of the deaths that the trainer with the blocks dies. Of the others any one may die."""
DIVIDED_SHARE = 0.4
"""Share of the runs in which workers share blocks."""
CHECKPOINT_STEPS = 8
"""Between two checkpoints, which drain the pipeline: more than K + 1, or it would never be full."""
RUN_SECONDS = 300.0
"""A run that takes longer hangs, however busy the machine is."""


@dataclass
class Outcome:
    """The outcome of a run."""

    seed: int
    staleness: int
    """The limit K."""
    trainers: int
    shared: Shared | None
    """The way in which workers share blocks; None where they do not."""
    stateless: bool = False
    """True if no worker is killed but one that has no state."""
    candidates: bool = False
    """True if the trainers are candidates, and die until they are replaced."""
    members: int = 1
    """Number of agents, more than one in a group."""
    faults: Counter[Fault] = field(default_factory=Counter)
    points: Counter[str] = field(default_factory=Counter)
    """Faults of processes, by where they happened."""
    restarts: int = 0
    seconds: float = 0.0
    worst: Worst = field(default_factory=Worst)
    loss: str = ""
    """Description of the loss; empty when nothing was lost."""


async def disturbed_run(
    seed: int, folder: Path, expected: Sequence[Expected], staleness: int, faults: int, *, tiers: bool = False
) -> Outcome:
    """Run with about so many faults, drawn from `seed`. expected: see `expected_states`. tiers: under three tiers alone."""
    dice = random.Random(seed)
    trainers, shared = (
        ("near", "far", "spare")[: dice.randint(1, 3)],
        two_parts if dice.random() < DIVIDED_SHARE else None,
    )
    varieties = [*range(len(VARIETIES))]
    stateless, candidates = (not tiers and seed % STATELESS_EVERY == rest for rest in (0, CANDIDATES_AT))
    if tiers:
        trainers, shared = ("near", "far"), three_tiers
    if stateless:
        trainers, shared = ("near", STATELESS), two_parts
        varieties = [number for number in varieties if VARIETIES[number].has_stateless]
    if candidates:
        trainers, shared = ("near", "far", "spare"), None
    if shared is not None:
        varieties = [number for number in varieties if VARIETIES[number].may_be_divided]
    variety = varieties[seed % len(varieties)]
    with ExitStack() as ports:  # held, or another process would be given one while its trainer is dead
        places = {name: ports.enter_context(held_port()) for name in trainers}
        async with AsyncExitStack() as relays:
            links = {
                name: await relays.enter_async_context(Relay("127.0.0.1", port, one_way_delay_seconds=DELAY_SECONDS))
                for name, port in places.items()
            }
            return await _disturbed_run(
                dice,
                Outcome(seed, staleness, len(trainers), shared, stateless, candidates),
                folder,
                variety,
                expected[variety],
                faults,
                places,
                links,
            )


async def _disturbed_run(
    dice: random.Random,
    outcome: Outcome,
    folder: Path,
    variety: int,
    expected: Expected,
    faults: int,
    ports: Mapping[str, int],
    relays: Mapping[str, Relay],
) -> Outcome:
    """ports: of the trainers, by name. relays: the way to each, for the agent and for the other one."""
    began, names = time.monotonic(), list(ports)
    on_link = dice.randint(0, faults // 2)
    on_agent = 0 if outcome.stateless else (faults - on_link + 1) // 2
    if outcome.stateless:
        placement, changes = with_a_stateless(*names), {}
    elif outcome.candidates:
        placement, changes = None, {step: dice.choice(names) for step in CHANGES_AT}
    else:
        placement = draw(dice, names, outcome.shared)
        changes = draw_changes(dice, names, placement, CHANGES_AT, outcome.shared)
    addresses = {name: relay.address for name, relay in relays.items()}
    placed = _placed(folder, placement) if placement is not None else [f"deployment.cut={dice.randint(1, BLOCKS - 1)}"]
    agent_flags = [
        *_agent_flags(folder, outcome.staleness, addresses, REPLACE_SECONDS if outcome.candidates else None),
        *placed,
        *VARIETIES[variety].flags,
    ]
    agent = Side(sides.agent, [agent_flags, changes], plan(dice, "agent", on_agent, len(names)), folder, "agent")
    on_trainers = [STATELESS if outcome.stateless else dice.choice(names) for _ in range(faults - on_link - on_agent)]
    trainers = [
        Side(
            sides.trainer,
            [_trainer_flags(folder, name, port), name],
            plan(dice, "stateless" if outcome.stateless else "trainer", on_trainers.count(name), len(names)),
            folder,
            name,
        )
        for name, port in ports.items()
    ]
    (folder / "agent.log").touch()
    for side in (*trainers, agent):
        side.start()
    tasks = [asyncio.create_task(keep_up(trainer)) for trainer in trainers]
    tasks.append(
        asyncio.create_task(disturb_links(list(relays.values()), dice, on_link, outcome.faults, folder / "agent.log")),
    )
    if not outcome.stateless:
        lose = _let_die if outcome.candidates else _lose_disks
        tasks.append(asyncio.create_task(lose(trainers, dice, outcome, folder / "agent.log")))
    try:
        async with asyncio.timeout(RUN_SECONDS):
            while await agent.ended() != 0:
                agent.start()
    except TimeoutError:
        outcome.loss = f"the run hangs ({folder})"
        await tell_threads((agent, *trainers))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for side in (agent, *trainers):
            side.kill()
    for side in (agent, *trainers):
        outcome.faults.update(fault for fault, _ in side.fired)
        outcome.points.update(point for _, point in side.fired)
    outcome.restarts = sum(side.starts - 1 for side in (agent, *trainers))
    outcome.seconds = time.monotonic() - began
    outcome.loss = outcome.loss or _loss(folder, expected, outcome, names)
    return outcome


def _trainer_flags(folder: Path, name: str, port: int) -> list[str]:
    return [
        f"server.listen=127.0.0.1:{port}",
        f"models.allowed={ALLOWED}",
        "compute.threads=1",
        'compute.device="cpu"',
        "control.listen=none",
        f"checkpoints.location={folder / name}",
        f"checkpoints.step_log={folder / 'steps' / name}",
        f"link.stall_seconds={STALL_SECONDS}",
        "server.max_sessions=2",
        "server.accept_inputs=true",
        'peers.allowed=["127.0.0.1:*"]',
    ]


def _placed(folder: Path, placement: Document) -> list[str]:
    """placement: what the run begins under."""
    file = folder / "placement.json"
    file.write_text(json.dumps(placement))
    return [f"placement.file={file}"]


def _agent_flags(
    folder: Path, staleness: int, addresses: Mapping[str, str], replace_seconds: float | None
) -> list[str]:
    """addresses: of the trainers, by name. replace_seconds: after which one that is away is replaced, if it is."""
    names, after = list(addresses), "" if replace_seconds is None else f", replace_after_seconds={replace_seconds}"
    named = ", ".join(f'{{name="{name}", address="{address}"{after}}}' for name, address in addresses.items())
    return [
        *EXPERIMENT,
        f"trainers=[{named}]",
        f"privacy.inputs_to={json.dumps(names)}",
        f"privacy.gradients_to={json.dumps(names)}",
        f"deployment.staleness={staleness}",
        f"deployment.codec={'fp32' if staleness == 0 else 'uniform8'}",
        f"checkpoints.every_steps={CHECKPOINT_STEPS}",
        "checkpoints.replicas=1",
        f"checkpoints.location={folder / 'edge'}",
        f"checkpoints.step_log={folder / 'steps' / 'edge'}",
        f"link.stall_seconds={STALL_SECONDS}",
    ]


def _loss(folder: Path, expected: Expected, outcome: Outcome, trainers: Sequence[str]) -> str:
    summary = json.loads((folder / "result" / "summary.json").read_text())
    owners = {block["worker"] for block in summary["blocks"]}
    for worker in ("edge", *trainers):
        if wrong := wrong_steps(folder / "steps" / worker, has_part=worker in {"edge", *owners}):
            return f"{worker} {wrong} ({folder})"
    try:
        outcome.worst = worst((folder / "order").read_text().splitlines())
    except ValueError as wrong:
        return f"exactly once: {wrong} ({folder})"
    if excess := exceeds(outcome.worst, outcome.staleness):
        return f"bounded: {excess} ({folder})"
    if outcome.stateless and "went back to a checkpoint" in (folder / "agent.log").read_text():
        return f"a worker went back, though only one without a state was killed ({folder})"
    result = load_file(folder / "result" / "model.safetensors")
    if outcome.staleness == 0:
        state = {None: expected.whole, two_parts: expected.divided, three_tiers: expected.tiers}[outcome.shared]
        different = [name for name, tensor in state.items() if not result[name].equal(tensor)]
        if different:
            return f"{different} differ ({folder})"
    return ""


def wrong_steps(logs: Path, *, has_part: bool) -> str:
    """Judge the step logs of a worker; empty where each step was applied once.

    has_part: False for a worker that owns no block at the end: it hears of no end, and may never have begun.
    """
    newest = max(logs.glob("*.steps"), key=lambda log: log.stat().st_mtime, default=None)  # one a session
    if newest is None:
        return "has a part and no log of its steps" if has_part else ""
    try:
        steps = check_steps(newest)
    except StepLogError as wrong:
        return f"has not applied each step once: {wrong}"
    return f"has applied {steps} of {STEPS} steps" if steps > STEPS or (steps < STEPS and has_part) else ""


async def _lose_disks(trainers: Sequence[Side], dice: random.Random, outcome: Outcome, log: Path) -> None:
    """Have trainers lose their disks, each time once all replicas are kept that were kept before."""
    for _ in range(dice.randint(0, LOST_DISKS)):
        shared = _shared(log)
        while _shared(log) < shared + 2:  # one may have been under way when a disk was lost  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        dice.choice(trainers).lose_disk()
        outcome.faults[Fault.LOST_DISK] += 1


async def _let_die(trainers: Sequence[Side], dice: random.Random, outcome: Outcome, log: Path) -> None:
    """Have trainers die, each until others go on without it."""
    for _ in range(DEATHS):
        shared, any_one = _shared(log), dice.choice(trainers)
        while _shared(log) < shared + 2:  # a keeper has the replicas by now, if there is one  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        trainer = max(trainers, key=Side.stepped_at) if dice.random() < DEATHS_OF_THE_HOLDER else any_one
        replaced = _replaced(log)
        trainer.may_start.clear()
        trainer.kill()
        outcome.faults[Fault.DEATH] += 1
        try:
            shared = _shared(log)
            async with asyncio.timeout(DEAD_SECONDS):
                while _replaced(log) == replaced and _shared(log) < shared + 2:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
        except TimeoutError:
            pass
        finally:
            trainer.may_start.set()


def _replaced(log: Path) -> int:
    return log.read_text().count("trainers replaced")


def _shared(log: Path) -> int:
    return log.read_text().count("checkpoint at every worker")
