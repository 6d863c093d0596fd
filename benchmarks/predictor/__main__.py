"""Accuracy of predictions of an unseen kind of device from ten of its times: `python -m benchmarks.predictor`.

    python -m benchmarks.predictor [--folder FOLDER] [--rounds N] [--repeats N] [--json PATH]

Devices are processes on this machine: kernel levels of oneDNN (ONEDNN_MAX_CPU_ISA), or none of its kernels, each with one
thread and with as many as there are cores. Levels change what one layer takes beside another, as other processors do. Each
device is measured by `edge-agent profile`, all in turns, one round after the other. Every device is then predicted by those
of all *other* kernel levels. A time is the least of its rounds, for what disturbs only adds; "again" compares the even
rounds with the odd ones, which is how well times can be known at all. Tables are kept in FOLDER, and what is there is not
measured again.

Ten devices of 171 sub-models take about 40 minutes in eight rounds on two quiet cores.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from benchmarks.predictor.baselines import ftpipehd, nearest_device, one_factor
from benchmarks.predictor.paper_network import paper_network
from benchmarks.rivals.prediction import Accuracy, accuracy, trial
from benchmarks.support.arguments import benchmark_parser
from benchmarks.support.machine import machine
from benchmarks.support.report import write_json
from edge_agent.planning.prediction import KnownDevices, LatencyTable, known_devices, load_table

LEVELS = ("SSE41", "AVX", "AVX2", "AVX512_CORE")
NONE = "none"
"""The kernels of torch itself."""
MORE = 8
MODEL = (
    'model.factory="benchmarks.networks:mobilenet"',
    'data.train={factory="benchmarks.networks:RandomImages", kwargs={size=48}}',
    "data.batch_size=16",
    'training.optimizer={name="sgd", momentum=0.9}',
    "trainers=[]",
)


@dataclass(frozen=True)
class Device:
    """One setting of this machine."""

    level: str
    threads: int

    @property
    def name(self) -> str:
        """Name of the device in tables."""
        return f"{self.level}-{self.threads}"

    def measure(self, out: Path, repeats: int) -> None:
        """One round of all sub-models, by the command that users have. Nothing where it was done before."""
        if out.exists():
            return
        level = {"ISTHMUS_BENCHMARK_ONEDNN": "off"} if self.level == NONE else {"ONEDNN_MAX_CPU_ISA": self.level}
        flags = [f"--set={flag}" for flag in (*MODEL, f"compute.threads={self.threads}", 'log.level="warning"')]
        command = [sys.executable, "-m", "edge_agent.main", "profile", "--worker=edge", f"--repeats={repeats}"]
        subprocess.run(
            [*command, f"--device={self.name}", f"--out={out}", *flags],
            env={**os.environ, **level, "OMP_NUM_THREADS": str(self.threads)},
            check=True,
            stdout=subprocess.DEVNULL,
        )


def devices() -> list[Device]:
    """Every level with one thread and with all."""
    threads = sorted({1, os.cpu_count() or 1})
    return [Device(level, count) for level in (*LEVELS, NONE) for count in threads]


def measured(folder: Path, rounds: int, repeats: int) -> dict[Device, list[LatencyTable]]:
    """A table a round of each device, which take turns."""
    folder.mkdir(parents=True, exist_ok=True)
    tables: dict[Device, list[LatencyTable]] = {device: [] for device in devices()}
    for number in range(rounds):
        for device, of_device in tables.items():
            path = folder / f"{device.name}-{number}.json"
            device.measure(path, repeats)
            of_device.append(load_table(path))
    return tables


def least(tables: list[LatencyTable]) -> LatencyTable:
    """The least of each sub-model's times; all tables have the same, in the same order."""
    seconds = np.min([[sample.seconds for sample in table.samples] for table in tables], axis=0)
    samples = tuple(
        sample.model_copy(update={"seconds": float(least)})
        for sample, least in zip(tables[0].samples, seconds, strict=True)
    )
    return tables[0].model_copy(update={"samples": samples})


def log_seconds(table: LatencyTable) -> np.ndarray:
    """Return the log seconds of all samples."""
    return np.log([sample.seconds for sample in table.samples])


def estimates(known: KnownDevices, unseen: LatencyTable, more: int) -> dict[str, Accuracy]:
    """Judge the predictor and each of its rivals, which are told the same times."""
    one = trial(known, unseen, more)
    model, layers_ML, told = one.device.model, one.device.layers_ML, one.told
    assert unseen.flops is not None, "edge-agent profile counts operations"
    predicted = {
        "predictor": model.predict(told),
        "flops": one_factor(unseen.flops, layers_ML, told),
        "nearest": nearest_device(model.log_seconds_DM, told),
        "ftpipehd": ftpipehd(model.log_seconds_DM, told),
        "network": paper_network(layers_ML, model.log_seconds_DM, one.device.reference, told),
    }
    return {name: one.accuracy(logs_M) for name, logs_M in predicted.items()}


@dataclass(frozen=True)
class Result:
    """The result of one device that was predicted by devices of other kernel levels."""

    again: Accuracy
    """One half of its rounds against the other."""
    ten: dict[str, Accuracy]
    more: dict[str, Accuracy]
    """With eight samples beside the ten."""


def results(tables: dict[Device, list[LatencyTable]]) -> Iterator[tuple[Device, Result]]:
    """Every device, predicted by those of all other kernel levels."""
    whole = {device: least(of_device) for device, of_device in tables.items()}
    for device, unseen in whole.items():
        known = known_devices({other.name: table for other, table in whole.items() if other.level != device.level})
        again = accuracy(log_seconds(least(tables[device][::2])), log_seconds(least(tables[device][1::2])))
        ten, more = (estimates(known, unseen, count) for count in (0, MORE))
        yield device, Result(again, ten, more)


def main() -> None:
    """Measure, predict, print."""
    parser = benchmark_parser("predictor", __doc__)
    parser.add_argument("--folder", type=Path, default=Path("run/benchmark-predictor"), help="where tables are kept")
    parser.add_argument("--rounds", type=int, default=8, help="how often each device is measured, 2 or more")
    parser.add_argument("--repeats", type=int, default=3, help="steps of one measurement")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found = dict(results(measured(arguments.folder, arguments.rounds, arguments.repeats)))
    shown = Table(title="sub-models within 5 % / 10 % of what was measured, in percent", title_justify="left")
    _, *rivals = next(iter(found.values())).ten
    columns = ("device", "again", "ten times", f"{MORE} more", *rivals)
    for column in columns:
        shown.add_column(column, justify="left" if column == "device" else "right")
    rows = {
        device.name: (
            result.again,
            result.ten["predictor"],
            result.more["predictor"],
            *(result.ten[name] for name in rivals),
        )
        for device, result in found.items()
    }
    for name, figures in rows.items():
        shown.add_row(name, *(_shares([figure]) for figure in figures))
    shown.add_section()
    shown.add_row("mean", *(_shares(list(column)) for column in zip(*rows.values(), strict=True)))
    console = Console()
    console.print(machine(), soft_wrap=True)
    console.print(shown)
    write_json(arguments.json, "predictor", devices={device.name: asdict(result) for device, result in found.items()})


def _shares(figures: list[Accuracy]) -> str:
    within = (np.mean([figure.within_5 for figure in figures]), np.mean([figure.within_10 for figure in figures]))
    return " / ".join(f"{100 * share:.0f}" for share in within)


if __name__ == "__main__":
    main()
