"""Accuracy of the prediction of a device that was never seen: some of its times are told, and the others judge the
prediction. `python -m benchmarks.rivals.prediction --known T.json --known U.json --unseen V.json` says it of latency tables."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from edge_agent.planning.prediction.devices import Floats, KnownDevices, known_devices
from edge_agent.planning.prediction.gaussian import Measured, NewDevice, new_device
from edge_agent.planning.prediction.table import LatencyTable, load_table
from shared.commands.entry import run_command
from shared.errors import PlanError


@dataclass(frozen=True)
class Accuracy:
    """The accuracy of predictions of one device. Errors are relative to the measured times."""

    within_5: float
    """Share of sub-models whose error is 5 % at most."""
    within_10: float
    """The same of 10 %."""
    median_error: float
    worst_error: float


def accuracy(predicted_M: Floats, measured_M: Floats) -> Accuracy:
    """Compare log seconds; there is one of each at least."""
    error = np.abs(np.expm1(np.minimum(predicted_M - measured_M, 700.0)))  # exp of more is infinite
    return Accuracy(
        within_5=float(np.mean(error <= 0.05)),
        within_10=float(np.mean(error <= 0.10)),
        median_error=float(np.median(error)),
        worst_error=float(error.max()),
    )


@dataclass(frozen=True)
class Trial:
    """An unseen device of which only some times are told."""

    device: NewDevice
    told: Measured
    """Its reference, and the times that were requested beside it."""
    held_back: Measured
    """All its other times."""

    def accuracy(self, predicted_M: Floats) -> Accuracy:
        """Compare predicted log seconds of all sub-models with the times that were held back."""
        return accuracy(predicted_M[self.held_back.indices_N], self.held_back.log_seconds_N)


def trial(devices: KnownDevices, unseen: LatencyTable, more: int) -> Trial:
    """Tell the unseen device's reference and so many times more, which the predictor chooses.

    Raises PlanError where nothing is left to judge by, and as `new_device` does.
    """
    device = new_device(devices, unseen)
    times = dict(zip(device.measured.indices_N.tolist(), device.measured.log_seconds_N.tolist(), strict=True))
    candidates = np.array([index for index in times if index not in set(device.reference.tolist())], dtype=np.intp)
    if more >= len(candidates):
        raise PlanError(
            f"the table of {unseen.device} has {len(candidates)} samples beside its reference; {more} of them are to be "
            "used, so that none is left to judge by"
        )
    told = [*device.reference.tolist(), *device.model.most_telling(device.reference, candidates, more)]
    held_back = [index for index in times if index not in set(told)]

    def measured(indices: list[int]) -> Measured:
        return Measured(np.array(indices, dtype=np.intp), np.array([times[index] for index in indices]))

    return Trial(device, measured(told), measured(held_back))


@dataclass(frozen=True)
class Evaluation:
    """The evaluation of the prediction of one unseen device."""

    device: str
    used: int
    """Number of its samples that were used to predict the others."""
    judged: int
    """Number of the other samples."""
    predictor: Accuracy


def evaluate(devices: KnownDevices, unseen: LatencyTable, more: int) -> Evaluation:
    """Predict the unseen device from its reference and so many samples more, and judge by all the others.

    Raises PlanError as `trial` does.
    """
    one = trial(devices, unseen, more)
    return Evaluation(
        device=unseen.device,
        used=len(one.told.indices_N),
        judged=len(one.held_back.indices_N),
        predictor=one.accuracy(one.device.model.predict(one.told)),
    )


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def judge(
    known: Annotated[list[Path], typer.Option(help="Latency table of a known device. Repeatable, of two at least.")],
    unseen: Annotated[Path, typer.Option(help="Table of the device to predict; only its reference is used for that.")],
    samples: Annotated[int, typer.Option(help="Samples of it that are used beside its reference.", min=0, max=200)] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of a table.")] = False,
) -> None:
    """Predict a device that was never seen, and compare with what was measured."""
    evaluation = evaluate(known_devices({str(path): load_table(path) for path in known}), load_table(unseen), samples)
    if as_json:
        typer.echo(json.dumps(asdict(evaluation), indent=2))
    else:
        Console().print(_table(evaluation))


def _table(evaluation: Evaluation) -> Table:
    shown = Table(
        title=f"{evaluation.device}: {evaluation.judged} sub-models predicted from {evaluation.used}",
        title_justify="left",
    )
    for column in ("within 5 %", "within 10 %", "median error", "worst error"):
        shown.add_column(column, justify="right")
    shown.add_row(*(f"{100 * figure:.1f} %" for figure in asdict(evaluation.predictor).values()))
    return shown


def main() -> None:
    """Run the command; ends the process with its exit code."""
    run_command("benchmarks.rivals.prediction", app)


if __name__ == "__main__":
    main()
