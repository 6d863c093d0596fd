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
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from benchmarks.net.relay import Relay
from edge_agent.training.history import read_history
from shared.errors import StepLogError
from shared.training.step_log import check_steps
from tests.chaos import sides
from tests.chaos.faults import Fault, plan
from tests.chaos.links import DELAY_SECONDS, STALL_SECONDS, disturb_links
from tests.chaos.losses import detours_of, let_die, lose_disks, lose_ways
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
from tests.chaos.varieties import (
    EARLY_STOP,
    EXPERIMENT,
    VARIETIES,
    draw_extras,
    expected,
    expected_shared,
    flags_of_extras,
    plan_of_extras,
)
from tests.support.plain_history import of
from tests.support.running import ALLOWED, held_port

EXTRAS = "extras"
ONLY = ("tiers", "ways", EXTRAS)
"""Kinds of runs that may be drawn alone: of three tiers, of a device that loses its ways, and those with extras
(`draw_extras`), of any other kind."""
CHANGES_AT = (7, 20, 33, 46, 60)
STATELESS, STATELESS_EVERY = "far", 5
"""The trainer that alone is killed in every run whose seed is a multiple of this."""
CANDIDATES_AT = 3
"""Remainder of the seeds of runs among candidates, by the same divisor: they are handed over, and their trainers die."""
REPLACE_SECONDS = 1.0
"""The time after which a trainer that has died in such a run is replaced."""
WAYS_EVERY, RELAYING_FAULTS, DETOUR_FAULTS = 2, 2, 1
"""In every second of these runs nobody stays dead, but the device loses its ways to trainers; so many faults each trainer has
then while it carries bytes to another one, and so many the agent on its detours."""
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
    """True if the trainers are candidates, and die until they are replaced or the device loses its ways to them."""
    ways: bool = False
    """True if it loses its ways."""
    extras: tuple[str, ...] = ()
    """The names of what it has beside its variety."""
    detours: int = 0
    """Number of times that a trainer was reached through another one."""
    members: int = 1
    """Number of agents, more than one in a group."""
    joined: bool = False
    """True if one more agent has joined the group while it trained."""
    faults: Counter[Fault] = field(default_factory=Counter)
    points: Counter[str] = field(default_factory=Counter)
    """Faults of processes, by where they happened."""
    restarts: int = 0
    seconds: float = 0.0
    worst: Worst = field(default_factory=Worst)
    loss: str = ""
    """Description of the loss; empty when nothing was lost."""


async def disturbed_run(seed: int, folder: Path, staleness: int, faults: int, only: str | None = None) -> Outcome:
    """Run with about so many faults, drawn from `seed`. only: one of `ONLY`, not any kind."""
    dice = random.Random(seed)
    trainers, shared = (
        ("near", "far", "spare")[: dice.randint(1, 3)],
        two_parts if dice.random() < DIVIDED_SHARE else None,
    )
    varieties = [*VARIETIES]
    extras, only = draw_extras(seed, always=only == EXTRAS), None if only == EXTRAS else only
    stateless, candidates = (not only and seed % STATELESS_EVERY == rest for rest in (0, CANDIDATES_AT))
    ways = only == "ways" or (candidates and seed // STATELESS_EVERY % WAYS_EVERY == 1)
    candidates = candidates or ways
    if only == "tiers":
        trainers, shared = ("near", "far"), three_tiers
    if stateless:
        trainers, shared = ("near", STATELESS), two_parts
        varieties = [variety for variety in varieties if variety.has_stateless]
    if candidates:
        trainers, shared = ("near", "far", "spare"), None
    if shared is not None:
        varieties = [variety for variety in varieties if variety.may_be_divided]
    variety = varieties[seed % len(varieties)]
    with ExitStack() as ports:  # held, or another process would be given one while its trainer is dead
        places = {name: ports.enter_context(held_port()) for name in trainers}
        async with AsyncExitStack() as relays:

            async def links() -> dict[str, Relay]:
                return {
                    name: await relays.enter_async_context(
                        Relay("127.0.0.1", port, one_way_delay_seconds=DELAY_SECONDS)
                    )
                    for name, port in places.items()
                }

            return await _disturbed_run(
                dice,
                Outcome(seed, staleness, len(trainers), shared, stateless, candidates, ways, extras),
                folder,
                [*variety.flags, *flags_of_extras(extras)],
                faults,
                places,
                await links(),
                await links() if ways else {},
            )


async def _disturbed_run(
    dice: random.Random,
    outcome: Outcome,
    folder: Path,
    recipe: Sequence[str],
    faults: int,
    ports: Mapping[str, int],
    relays: Mapping[str, Relay],
    ways: Mapping[str, Relay],
) -> Outcome:
    """recipe: flags of what is trained. ports: of the trainers, by name. relays: the way to each, for the agent and for the
    others. ways: those of the agent, where it has its own."""
    began, names, log = time.monotonic(), list(ports), folder / "agent.log"
    on_link = dice.randint(0, faults // 2)
    on_agent = 0 if outcome.stateless else (faults - on_link + 1) // 2
    if outcome.stateless:
        placement, changes = with_a_stateless(*names), {}
    elif outcome.candidates:
        placement, changes = None, {step: dice.choice(names) for step in CHANGES_AT}
    else:
        placement = draw(dice, names, outcome.shared)
        changes = draw_changes(dice, names, placement, CHANGES_AT, outcome.shared)
    at_evaluations = plan_of_extras(outcome.seed, () if outcome.stateless else outcome.extras)
    addresses = {name: relay.address for name, relay in relays.items()}
    placed = _placed(folder, placement) if placement is not None else [f"deployment.cut={dice.randint(1, BLOCKS - 1)}"]
    replaced = outcome.candidates and not ways
    agent_flags = [
        *_agent_flags(folder, outcome.staleness, addresses, REPLACE_SECONDS if replaced else None),
        *placed,
        *recipe,
    ]
    agent = Side(
        sides.moving_agent,
        [agent_flags, changes, {addresses[name]: way.address for name, way in ways.items()}],
        [
            *plan(dice, "agent", on_agent, len(names)),
            *plan(dice, "detour", DETOUR_FAULTS if ways else 0, len(names)),
            *at_evaluations,
        ],
        folder,
        "agent",
    )
    on_trainers = [STATELESS if outcome.stateless else dice.choice(names) for _ in range(faults - on_link - on_agent)]
    trainers = [
        Side(
            sides.trainer,
            [_trainer_flags(folder, name, port), name],
            plan(dice, "stateless" if outcome.stateless else "trainer", on_trainers.count(name), len(names))
            + plan(dice, "relaying", RELAYING_FAULTS if ways else 0, len(names)),
            folder,
            name,
        )
        for name, port in ports.items()
    ]
    log.touch()
    for side in (*trainers, agent):
        side.start()
    tasks = [asyncio.create_task(keep_up(trainer)) for trainer in trainers]
    links = [*relays.values(), *ways.values()]
    tasks.append(asyncio.create_task(disturb_links(links, dice, on_link, outcome.faults, log)))
    if ways:
        tasks.append(asyncio.create_task(lose_ways(ways, trainers, dice, outcome.faults, log)))
    elif not outcome.stateless:
        lose = let_die if outcome.candidates else lose_disks
        tasks.append(asyncio.create_task(lose(trainers, dice, outcome.faults, log)))
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
    outcome.detours = detours_of(log)
    outcome.seconds = time.monotonic() - began
    outcome.loss = outcome.loss or _loss(folder, recipe, outcome, names)
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
        "training.keep_best={}",
        f"checkpoints.every_steps={CHECKPOINT_STEPS}",
        "checkpoints.replicas=1",
        f"checkpoints.location={folder / 'edge'}",
        f"checkpoints.step_log={folder / 'steps' / 'edge'}",
        f"link.stall_seconds={STALL_SECONDS}",
    ]


def _loss(folder: Path, recipe: Sequence[str], outcome: Outcome, trainers: Sequence[str]) -> str:
    result = folder / "result"
    summary = json.loads((result / "summary.json").read_text())
    owners = {block["worker"] for block in summary["blocks"]}
    for worker in ("edge", *trainers):
        has_part = worker in {"edge", *owners}
        if wrong := wrong_steps(folder / "steps" / worker, summary["steps"], has_part=has_part):
            return f"{worker} {wrong} ({folder})"
    try:
        outcome.worst = worst((folder / "order").read_text().splitlines())
    except ValueError as wrong:
        return f"exactly once: {wrong} ({folder})"
    if excess := exceeds(outcome.worst, outcome.staleness):
        return f"bounded: {excess} ({folder})"
    if outcome.stateless and "went back to a checkpoint" in (folder / "agent.log").read_text():
        return f"a worker went back, though only one without a state was killed ({folder})"
    if outcome.staleness == 0 and (wrong := _wrong_result(folder, recipe, outcome, summary)):
        return f"{wrong} {outcome.extras} ({folder})"
    return ""


def _wrong_result(folder: Path, recipe: Sequence[str], outcome: Outcome, summary: Mapping[str, Any]) -> str:
    """Judge the rows and the weights of a run with K = 0; empty where they are the plain loop's."""
    result, shared = folder / "result", outcome.shared
    rows = read_history(result)
    ends_early, best_step = EARLY_STOP in outcome.extras, summary["best_step"]
    if shared is None:
        right = expected(recipe, ends_early=ends_early)
    else:
        right = expected_shared(folder, recipe, shared, rows, ends_early=ends_early)
    if summary["steps"] != right.steps:
        return f"it has done {summary['steps']} steps, not {right.steps}"
    if right.rows is not None and (found := of(rows)) != right.rows:
        return f"the history has {found}, not {right.rows}"
    best = min(rows, key=lambda row: row.test_loss or 0.0).step
    if best_step != best:
        return f"the best step is {best_step}, not {best}"
    files = {"model.safetensors": right.at[right.steps], "best.safetensors": right.at[best]}
    if right.average:
        files["ema.safetensors"] = right.average
    return next(filter(None, (different(result / name, weights) for name, weights in files.items())), "")


def different(file: Path, right: Mapping[str, Tensor]) -> str:
    """Compare weights; empty where they have the same bits."""
    found = load_file(file)
    different = [name for name, tensor in right.items() if not found[name].equal(tensor)]
    return f"{different} differ in {file.name}" if different else ""


def wrong_steps(logs: Path, of_run: int, *, has_part: bool) -> str:
    """Judge the step logs of a worker; empty where each step was applied once. of_run: steps that the run has done.

    has_part: False for a worker that owns no block at the end: it hears of no end, and may never have begun.
    """
    newest = max(logs.glob("*.steps"), key=lambda log: log.stat().st_mtime, default=None)  # one a session
    if newest is None:
        return "has a part and no log of its steps" if has_part else ""
    try:
        steps = check_steps(newest)
    except StepLogError as wrong:
        return f"has not applied each step once: {wrong}"
    return f"has applied {steps} of {of_run} steps" if steps > of_run or (steps < of_run and has_part) else ""
