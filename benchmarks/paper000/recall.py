"""Recall on the task whose device is frozen, type 2 of paper 000: bytes that go up, and the device's processor time.

The agent runs in this process beside a trainer on this machine, each with one thread. The device alone recalls, too.
"""

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from benchmarks.paper000.configuration import configuration
from benchmarks.paper000.tasks import Task
from benchmarks.support.processes import trainer_process
from benchmarks.support.report import mean_and
from benchmarks.support.trained import Trained, trained
from isthmus import EdgeConfig
from shared.config import load_config
from shared.telemetry.logs import configure_logs

_BLOCKS = 19
_STALENESS = 5
_ROWS = {
    "device alone": (f"deployment.cut={_BLOCKS}", "deployment.staleness=0", "deployment.codec=fp32"),
    "8 bits": (),
    "8 bits, recall": ("deployment.recall=true",),
}
"""Flags by the name of the row; the last is held against the one before."""


def recall_text(task: Task, size: str, folder: Path, epochs: int, seeds: Sequence[int]) -> str:
    """Train on all samples, and return the table. task: of 19 blocks. epochs: two or more. Raises DataError."""
    configure_logs("warning")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as kept:
        file = Path(kept) / "edge.toml"
        file.write_text(configuration(task, size, folder, epochs))
        with trainer_process(f"checkpoints.location={kept}", "compute.threads=1", "compute.device=cpu") as address:
            runs = {
                row: [trained(_config(file, address, seed, flags)) for seed in seeds] for row, flags in _ROWS.items()
            }
    return "\n\n".join(
        [
            "**recall: Features that are sent once.** Goals: as many bytes as one epoch sends, and 1 % of all more; a tenth of "
            "the device's processor time from the second epoch on.",
            f"*{task.title}*, size `{size}`, {epochs} epochs of all samples, batches of 32, K = {_STALENESS}. Mean ± standard "
            "deviation over the seeds.",
            "\n".join(_lines(runs)),
        ]
    )


def _config(file: Path, address: str, seed: int, flags: Sequence[str]) -> EdgeConfig:
    fixed = [
        f"trainer.address={address}",
        "trainer.insecure=true",
        f"training.seed={seed}",
        "training.evaluate_every_epochs=0",
        f"deployment.staleness={_STALENESS}",
        "compute.threads=1",
        "compute.device=cpu",
    ]
    return load_config(EdgeConfig, file, [*fixed, *flags], environ={})


def _lines(runs: dict[str, list[Trained]]) -> Iterator[str]:
    columns = ("", "MB up", "of 8 bits", "device, ms of processor time a step", "of 8 bits", "seeds")
    yield f"| {' | '.join(columns)} |"
    yield "|---" * len(columns) + "|"
    bytes_beside, seconds_beside = _uses(runs["8 bits"])
    for row, some in runs.items():
        bytes_up, seconds = _uses(some)
        cells = (
            mean_and([each / 1e6 for each in bytes_up], ".2f", of_mean=False),
            mean_and(_shares(bytes_up, bytes_beside), ".4f", of_mean=False),
            mean_and([1e3 * each for each in seconds], ".2f", of_mean=False),
            mean_and(_shares(seconds, seconds_beside), ".4f", of_mean=False),
        )
        yield f"| {row} | {' | '.join(cells)} | {len(some)} |"


def _uses(some: Sequence[Trained]) -> tuple[list[float], list[float]]:
    """Return the bytes up and the processor seconds a step, of each training."""
    return [one.result.summary.bytes_up for one in some], [one.step_processor_seconds for one in some]


def _shares(values: Sequence[float], beside: Sequence[float]) -> list[float]:
    return [value / other for value, other in zip(values, beside, strict=True)]
