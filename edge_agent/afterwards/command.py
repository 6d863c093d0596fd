"""The commands `edge-agent predict`, `evaluate` and `export`, which use a trained model."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edge_agent.late_config import load_edge_config
from isthmus_entry_points import importing
from shared.commands.options import ConfigFile, Overrides, one_of
from shared.errors import ConfigError

if TYPE_CHECKING:
    from edge_agent.config import EdgeConfig
    from edge_agent.data_config import DatasetConfig

_SETS = ("train", "test", "calibration")
_EXPORTS = ("onnx", "torch-export", "state-dict")
Weights = Annotated[
    Path | None,
    typer.Option(
        help="File of the weights, as training.start_from has it; model.safetensors of output.directory if absent."
    ),
]
Data = Annotated[
    str | None,
    typer.Option(help="Samples: train, test or calibration, or the factory of a dataset, or a table as data.test."),
]


def predict(
    file: Annotated[Path, typer.Argument(help="File to write, .npz or .csv.")],
    config: ConfigFile = None,
    overrides: Overrides = None,
    weights: Weights = None,
    data: Data = None,
) -> None:
    """Write what a trained model returns for each sample of data.test, or of --data, in their order.

    The numbers are those of the module itself, bit for bit. Nothing leaves this device.
    """
    with importing("edge-agent"):
        from edge_agent.afterwards.predictions import check_kind, write_predictions
        from edge_agent.afterwards.trained import trained

    check_kind(file)
    loaded, dataset = _chosen(config, overrides, data)
    with trained(loaded, weights, dataset) as workload:
        typer.echo(f"{write_predictions(workload, file)} samples: {file}")


def evaluate(
    config: ConfigFile = None,
    overrides: Overrides = None,
    weights: Weights = None,
    data: Data = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of lines.")] = False,
) -> None:
    """Show the loss and the accuracy of a trained model on data.test, or on --data, and the values of its metrics."""
    with importing("edge-agent"):
        from edge_agent.afterwards.trained import samples_of, trained
        from edge_agent.experiment.labels import expect_classes
        from edge_agent.training.evaluation import evaluated_whole

    loaded, dataset = _chosen(config, overrides, data)
    with trained(loaded, weights, dataset) as workload:
        expect_classes(workload, {"data.test"})
        found = evaluated_whole(workload.chain, workload.recipe, samples_of(workload))
    if as_json:
        typer.echo(json.dumps(found._asdict(), indent=2))
        return
    accuracy = {} if found.accuracy is None else {"accuracy": found.accuracy}
    for name, value in {"loss": found.loss, **accuracy, **found.metrics}.items():
        typer.echo(f"{name} {value:.6g}")


def export(
    file: Annotated[Path, typer.Argument(help="File to write.")],
    to: Annotated[str, typer.Option("--to", **one_of(_EXPORTS), help="Kind of file.")],
    config: ConfigFile = None,
    overrides: Overrides = None,
    weights: Weights = None,
    data: Data = None,
) -> None:
    """Write a trained model for other programs, and compare it with the module on samples of data.test, or of --data.

    A state dict computes the same bits; the others, in the precision of the weights, differ by 1e-5 at most. One that differs
    more is not written: code 18.
    """
    with importing("edge-agent"):
        from edge_agent.afterwards.exports import export as write_export
        from edge_agent.afterwards.trained import trained

    loaded, dataset = _chosen(config, overrides, data)
    with trained(loaded, weights, dataset) as workload:
        samples = write_export(workload, to, file)
    typer.echo(f"{file} computes as the model does, on {samples} samples")


def _chosen(
    config: Path | None, overrides: list[str] | None, data: str | None
) -> "tuple[EdgeConfig, DatasetConfig | None]":
    """Return the configuration, and the dataset that `--data` names. Raises ConfigError."""
    flags = list(overrides or [])
    if data is not None and data not in _SETS:
        flags.append(f"data.test={data}" if data.startswith("{") else f'data.test={{factory="{data}"}}')
    loaded = load_edge_config(config, flags)
    named = {"train": loaded.data.train, "calibration": loaded.data.calibration}
    if data in named and named[data] is None:
        raise ConfigError(f"data.{data} is left out, so there are no samples of it to compute on; give another --data")
    return loaded, named.get(data or "", loaded.data.test)
