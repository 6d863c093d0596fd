"""Cost of safety in a step at 4 MB features, K = 0: `python -m benchmarks.cost [--json PATH]`. Goal: less than 3 %
each.

Three trainers run beside each other: one keeps nothing, one writes a step log, one takes checkpoints. A round trains a while
without, with a step log, without, with checkpoints, and without again; a ratio is taken to the runs just before and after,
so that what else the machine does falls on both alike. Without to without is the noise; where its quartiles reach the goal,
nothing of that kind is judged. The pause of a checkpoint is what the step after it took longer than the other steps of its
run; negative is noise.

What such ratios cannot show on a noisy machine is measured alone too, as if nothing of it ran beside other work: the
checksums of all chunks of a step, of sender and receiver in both directions; the two step logs' hashing and writing, one
after the other; and, because the network here is small, how long one side needs to copy 100 MB of state, which is what a
checkpoint makes training wait for. `python -m benchmarks.tls` measures TLS in the same way.
"""

import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import structlog
import torch
import xxhash
from rich.console import Console
from rich.table import Table
from torch import nn

from benchmarks.overhead import BATCH, CASES, config
from benchmarks.support.arguments import benchmark_parser
from benchmarks.support.machine import machine
from benchmarks.support.processes import trainer_process
from benchmarks.support.report import Spread, write_json
from isthmus import train
from shared.config import LinkConfig
from shared.model.chain import build_chain
from shared.training.device import prepare_process
from shared.training.held_state import copy_state
from shared.training.recipe import Recipe
from shared.training.stage import Stage, lone_stage
from shared.training.step_log import StepLog

GOAL = 0.03
CASE = "4 MB"
ROUNDS, STEPS, WARM_UP = 6, 47, 6
CHECKPOINT_STEPS = 10
"""Steps between two checkpoints: many pauses in a short run. A real one has them further apart (checkpoints.every_seconds)."""
CHANNELS, SIZE = CASES[CASE]
PAYLOAD_BYTES = BATCH * CHANNELS * SIZE * SIZE * 4
LABEL_BYTES = BATCH * 8
ALONE_ROUNDS, BUFFERS = 40, 16
"""Payloads in turn, together larger than the processor's caches, as one that comes from the network is in none."""


STATE_WIDTH = 5000
STATE_BYTES = STATE_WIDTH * STATE_WIDTH * 4


@dataclass(frozen=True)
class Alone:
    """Seconds of each repeat, measured in this process without training."""

    checksums: list[float]
    step_logs: list[float]
    copies: list[float]
    """Seconds to copy a stage's state of STATE_BYTES."""


@dataclass(frozen=True)
class Round:
    """Seconds of the steps in one run of each kind, in this order."""

    before: list[float]
    logged: list[float]
    between: list[float]
    checkpointed: list[float]
    after: list[float]

    @property
    def log_ratio(self) -> float:
        """A step with a step log over one without."""
        return _middle(self.logged) / statistics.mean([_middle(self.before), _middle(self.between)])

    @property
    def checkpoints_ratio(self) -> float:
        """A step of a run with checkpoints, pauses included, over one without."""
        plain = statistics.mean([_whole(self.between), _whole(self.after)])
        return _whole(self.checkpointed) / plain

    @property
    def noise(self) -> float:
        """A step without anything over another."""
        return _middle(self.after) / _middle(self.between)

    @property
    def pauses(self) -> list[float]:
        """Time by which each step after a checkpoint was longer than the others."""
        usual = _middle([seconds for number, seconds in enumerate(self.checkpointed) if not _follows(number)])
        return [seconds - usual for number, seconds in enumerate(self.checkpointed) if _follows(number)]


def _middle(seconds: list[float]) -> float:
    return statistics.median(seconds)


def _whole(seconds: list[float]) -> float:
    """The mean over whole stretches between checkpoints, so that every pause counts once."""
    count = len(seconds) // CHECKPOINT_STEPS * CHECKPOINT_STEPS
    return statistics.mean(seconds[:count])


def _follows(number: int) -> bool:
    """Tell whether a checkpoint is taken before that step. number: from the first one that counts."""
    return (number + WARM_UP) % CHECKPOINT_STEPS == 0


def step_seconds(address: str, *flags: str) -> list[float]:
    """Seconds of each step of a short run but the first ones."""
    moments: list[float] = []
    run = config(CHANNELS, SIZE, address, f"training.max_steps={STEPS}", *flags)
    train(run, lambda _progress: moments.append(time.perf_counter()))
    return [after - before for before, after in pairwise(moments)][WARM_UP - 1 :]


def timed(work: Callable[[int], object]) -> list[float]:
    """Seconds of each repeat; `work` is told its number."""
    seconds = []
    for number in range(ALONE_ROUNDS):
        began = time.perf_counter()
        work(number)
        seconds.append(time.perf_counter() - began)
    return seconds


def large_stage() -> Stage:
    """A stage whose state has STATE_BYTES, and a little more."""
    module = nn.Sequential(nn.Sequential(nn.Flatten(), nn.Linear(3, STATE_WIDTH)), nn.Linear(STATE_WIDTH, STATE_WIDTH))
    run = config(CHANNELS, SIZE, "127.0.0.1:1").training
    recipe = Recipe(
        optimizer=run.optimizer, schedule=run.schedule, loss=run.loss, seed=0, steps_per_epoch=1, total_steps=STEPS
    )
    return lone_stage(build_chain(module, torch.randn(BATCH, 3, 1, 1)), 0, 2, recipe, torch.device("cpu"))


def alone(folder: Path) -> Alone:
    """Checksums and step logs of a step without training."""
    payloads = [memoryview(bytes([number]) * PAYLOAD_BYTES) for number in range(BUFFERS)]
    labels, chunk_bytes = memoryview(bytes(LABEL_BYTES)), LinkConfig().chunk_bytes
    edge, trainer = StepLog(folder, "alone", "edge"), StepLog(folder, "alone", "trainer")

    def checksums(number: int) -> None:
        for part in range(4):  # of the feature and of its gradient, where each is sent and where it arrives
            payload = payloads[(4 * number + part) % BUFFERS]
            for start in range(0, PAYLOAD_BYTES, chunk_bytes):
                digest = xxhash.xxh3_64()
                digest.update(payload[start : start + chunk_bytes])
                digest.intdigest()

    def step_logs(number: int) -> None:
        trainer.applied(number, payloads[2 * number % BUFFERS], labels)
        edge.applied(number, payloads[(2 * number + 1) % BUFFERS])

    stage = large_stage()
    measured = Alone(timed(checksums), timed(step_logs), timed(lambda _number: copy_state(stage.held)))
    edge.close()
    trainer.close()
    return measured


def measure(folder: Path) -> list[Round]:
    """All rounds."""
    fixed = ["compute.threads=1", "compute.device=cpu"]
    nothing = ["checkpoints.location=none"]
    logged = [*nothing, f"checkpoints.step_log={folder / 'steps'}"]
    rounds = []
    with ExitStack() as stack:
        plain_address, logged_address, kept_address = (
            stack.enter_context(trainer_process(*fixed, *flags))
            for flags in (nothing, logged, [f"checkpoints.location={folder / 'trainer'}"])
        )
        kept = [f"checkpoints.location={folder / 'edge'}", f"checkpoints.every_steps={CHECKPOINT_STEPS}"]
        for _ in range(ROUNDS):
            rounds.append(
                Round(
                    step_seconds(plain_address, *nothing),
                    step_seconds(logged_address, *logged),
                    step_seconds(plain_address, *nothing),
                    step_seconds(kept_address, *kept),
                    step_seconds(plain_address, *nothing),
                )
            )
    return rounds


def main() -> None:
    """Measure and print the table."""
    parser = benchmark_parser("cost", __doc__)
    arguments = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(30))  # warnings
    prepare_process(1)  # as agent and trainer do
    with tempfile.TemporaryDirectory() as name:
        rounds = measure(Path(name))
        apart = alone(Path(name))
    step = _middle([_middle(plain) for each in rounds for plain in (each.before, each.between, each.after)])
    pause = Spread.of([seconds for each in rounds for seconds in each.pauses])
    table = Table("what", "ms a time", "of the time, %", "")

    noise = Spread.of([each.noise - 1 for each in rounds])
    quiet = max(abs(noise.lower_quartile), abs(noise.upper_quartile)) < GOAL

    def add(what: str, milliseconds: str, share: Spread, *, judged: bool = True) -> None:
        verdict = "kept" if share.median < GOAL else "MISSED"
        table.add_row(what, milliseconds, share.show(100), verdict if judged else "lost in noise")

    def paired(ratios: list[float]) -> Spread:
        return Spread.of([ratio - 1 for ratio in ratios])

    table.add_row("noise: without / without", "", noise.show(100), "")
    add("step log on both sides, paired runs", "", paired([each.log_ratio for each in rounds]), judged=quiet)
    add(
        f"a checkpoint every {CHECKPOINT_STEPS} steps, paired runs",
        "",
        paired([each.checkpoints_ratio for each in rounds]),
        judged=quiet,
    )
    for what, between_seconds in {
        f"pause of a checkpoint, every {CHECKPOINT_STEPS} steps": CHECKPOINT_STEPS * step,
        "the same, every 60 s (the default)": 60.0,
    }.items():
        add(what, pause.show(1e3), pause.scaled(1 / between_seconds), judged=quiet)
    for what, seconds in {"checksums, alone": apart.checksums, "step logs, alone": apart.step_logs}.items():
        spread = Spread.of(seconds)
        add(what, spread.show(1e3, 2), spread.scaled(1 / step))
    copy = Spread.of(apart.copies)
    add(f"copying a state of {STATE_BYTES / 1e6:.0f} MB, alone, every 60 s", copy.show(1e3), copy.scaled(1 / 60.0))
    console = Console(width=150)
    console.print(
        f"{CASE} features, K = 0, a step of {step * 1e3:.1f} ms; {ROUNDS} rounds; median (quartiles); {machine()}"
    )
    console.print(table)
    write_json(arguments.json, "cost", step_seconds=step, rounds=rounds, alone=apart)


if __name__ == "__main__":
    main()
