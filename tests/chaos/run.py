"""One disturbed run: a trainer, an agent and a link between them; each suffers faults, and is started again when it dies."""

import asyncio
import json
import random
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from benchmarks.net.relay import Fault as LinkFault
from benchmarks.net.relay import Relay
from shared.errors import StepLogError
from shared.training.step_log import check_steps
from tests.chaos import sides
from tests.chaos.faults import LINK_FAULTS, Fault, Planned, plan
from tests.chaos.order import Worst, exceeds, worst
from tests.support.plain import plain_state
from tests.support.running import ALLOWED, edge_config, held_port

STEPS, MOVES_AT = 80, (7, 20, 33, 46, 60)
CHECKPOINT_STEPS = 8
"""Between two checkpoints, which drain the pipeline: more than K + 1, or it would never be full."""
RUN_SECONDS = 300.0
"""A run that takes longer hangs, however busy the machine is."""
DELAY_SECONDS = 0.004
"""The delay of each direction, always: it makes a run long enough to be disturbed."""
STALL_SECONDS, LEAST_CORRUPTED_BYTES = 0.6, 200
EXPERIMENT = [
    'model.factory="shared.model.zoo:mlp"',
    "model.kwargs={depth=4}",
    'data.train={factory="tests.support.samples:FlatDigits"}',
    'data.test={factory="tests.support.samples:FlatDigits"}',
    'training.optimizer={name="adamw", learning_rate=0.003, clip_norm=1.0}',
    f"training.max_steps={STEPS}",
    "data.batch_size=16",
    "compute.threads=1",
    'compute.device="cpu"',
]


@dataclass
class Outcome:
    """What became of a run."""

    seed: int
    staleness: int
    """The limit K."""
    faults: Counter[Fault] = field(default_factory=Counter)
    restarts: int = 0
    seconds: float = 0.0
    worst: Worst = field(default_factory=Worst)
    loss: str = ""
    """What was lost; empty when nothing was."""


def expected_state(staleness: int) -> dict[str, Tensor] | None:
    """What an undisturbed run gives; None where only the order of events decides it."""
    torch.set_num_threads(1)
    return plain_state(edge_config(*EXPERIMENT)) if staleness == 0 else None


class _Side:
    """One of the two processes, started again whenever it ends."""

    def __init__(self, target: Any, arguments: list[Any], planned: list[Planned], folder: Path, name: str) -> None:
        self._target, self._arguments, self._planned = target, arguments, planned
        self._folder, self._fired = folder, folder / f"{name}.fired"
        self.starts = 0
        self.process: Any = None

    @property
    def fired(self) -> list[Fault]:
        if not self._fired.exists():
            return []
        return [Fault[line.split()[0]] for line in self._fired.read_text().splitlines()]

    def start(self) -> None:
        self.starts += 1
        left = self._planned[len(self.fired) :]
        self.process = sides.CONTEXT.Process(target=self._target, args=(*self._arguments, left, self._folder))
        self.process.start()

    async def ended(self) -> int:
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_reader(self.process.sentinel, ended.set)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(self.process.sentinel)
        self.process.join()
        return int(self.process.exitcode)

    def kill(self) -> None:
        if self.process is not None and self.process.is_alive():
            self.process.kill()
            self.process.join()


async def disturbed_run(
    seed: int, folder: Path, expected: dict[str, Tensor] | None, staleness: int, faults: int
) -> Outcome:
    """Run with about so many faults, drawn from `seed`."""
    with held_port() as port:  # or another process would be given it while the trainer is dead
        return await _disturbed_run(seed, folder, expected, staleness, faults, port)


async def _disturbed_run(
    seed: int, folder: Path, expected: dict[str, Tensor] | None, staleness: int, faults: int, port: int
) -> Outcome:
    dice, outcome, began = random.Random(seed), Outcome(seed, staleness), time.monotonic()
    trainer_flags = [
        f"server.listen=127.0.0.1:{port}",
        f"models.allowed={ALLOWED}",
        "compute.threads=1",
        'compute.device="cpu"',
        f"checkpoints.location={folder / 'trainer'}",
        f"checkpoints.step_log={folder / 'steps'}",
        f"link.stall_seconds={STALL_SECONDS}",
        "server.max_sessions=2",
    ]
    async with Relay("127.0.0.1", port, one_way_delay_seconds=DELAY_SECONDS) as relay:
        agent_flags = [
            *EXPERIMENT,
            f"deployment.cut={dice.randint(1, 4)}",
            f"deployment.staleness={staleness}",
            f"deployment.codec={'fp32' if staleness == 0 else 'uniform8'}",
            f"trainer.address={relay.address}",
            f"checkpoints.every_steps={CHECKPOINT_STEPS}",
            f"checkpoints.location={folder / 'edge'}",
            f"checkpoints.step_log={folder / 'steps'}",
            f"link.stall_seconds={STALL_SECONDS}",
        ]
        moves = {step: dice.randint(1, 4) for step in MOVES_AT}
        on_link = dice.randint(0, faults // 2)
        on_agent = (faults - on_link + 1) // 2
        trainer = _Side(
            sides.trainer, [trainer_flags], plan(dice, "trainer", faults - on_link - on_agent), folder, "trainer"
        )
        agent = _Side(sides.agent, [agent_flags, moves], plan(dice, "agent", on_agent), folder, "agent")
        (folder / "agent.log").touch()
        trainer.start()
        agent.start()
        tasks = [
            asyncio.create_task(_keep_up(trainer)),
            asyncio.create_task(_disturb(relay, dice, on_link, outcome, folder / "agent.log")),
        ]
        try:
            async with asyncio.timeout(RUN_SECONDS):
                while await agent.ended() != 0:
                    agent.start()
        except TimeoutError:
            outcome.loss = f"the run hangs ({folder})"
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            agent.kill()
            trainer.kill()
    outcome.faults.update(agent.fired + trainer.fired)
    outcome.restarts = agent.starts + trainer.starts - 2
    outcome.seconds = time.monotonic() - began
    outcome.loss = outcome.loss or _loss(folder, expected, outcome)
    return outcome


def _loss(folder: Path, expected: dict[str, Tensor] | None, outcome: Outcome) -> str:
    session = json.loads((folder / "result" / "summary.json").read_text())["session"]
    for side in ("edge", "trainer"):
        try:
            steps = check_steps(folder / "steps" / f"{session}-{side}.steps")
        except StepLogError as wrong:
            return f"exactly once: {wrong}"
        if steps != STEPS:
            return f"the {side} has applied {steps} of {STEPS} steps ({folder})"
    try:
        outcome.worst = worst((folder / "order").read_text().splitlines())
    except ValueError as wrong:
        return f"exactly once: {wrong} ({folder})"
    if excess := exceeds(outcome.worst, outcome.staleness):
        return f"bounded: {excess} ({folder})"
    result = load_file(folder / "result" / "model.safetensors")
    if expected is not None:
        different = [name for name, tensor in expected.items() if not result[name].equal(tensor)]
        if different:
            return f"{different} differ ({folder})"
    return ""


async def _keep_up(trainer: _Side) -> None:
    while True:
        await trainer.ended()
        trainer.start()


async def _disturb(relay: Relay, dice: random.Random, count: int, outcome: Outcome, log: Path) -> None:
    """Do so many things to the link, at moments of its own."""
    for _ in range(count):
        await asyncio.sleep(dice.uniform(0.05, 0.6))
        fault = dice.choice(LINK_FAULTS)
        lane = dice.choice([relay.uplink, relay.downlink])
        match fault:
            case Fault.DROP_LINK:
                relay.inject(LinkFault.DROP)
            case Fault.HALF_OPEN:
                relay.inject(LinkFault.FREEZE)
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(dice.uniform(0.1, 2 * STALL_SECONDS))
                relay.inject(LinkFault.RESUME)
            case Fault.DELAY:
                lane.one_way_delay_seconds = dice.uniform(0.01, 0.1)
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(0.2)
                lane.one_way_delay_seconds = DELAY_SECONDS
            case Fault.CORRUPT:
                # Without TLS, what opens a session has no checksum; a session that has a checkpoint is opened no more.
                while "checkpoint at every worker" not in log.read_text():  # noqa: ASYNC110, ASYNC240
                    await asyncio.sleep(0.05)
                lane.corrupt_next(LEAST_CORRUPTED_BYTES)
        outcome.faults[fault] += 1
