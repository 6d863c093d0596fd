"""`edge-agent predictor`: learn from latency tables of known devices, and predict another one from ten of its times."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from isthmus_entry_points import importing
from shared.errors import PlanError
from shared.files.whole_file import write_whole

if TYPE_CHECKING:
    from edge_agent.planning.prediction import KnownDevices

Tables = Annotated[
    list[Path],
    typer.Option("--tables", help="Latency tables of known devices (edge-agent measure), one after the other."),
]
MoreTables = Annotated[list[Path] | None, typer.Argument(metavar="[T2.json ...]", hidden=True)]
"""Tables behind the first: an option of the command line takes one value."""
predictor = typer.Typer(
    help="Predict what parts of the model take on a device of which only ten were measured.", no_args_is_help=True
)


@predictor.command()
def train(
    tables: Tables,
    out: Annotated[Path, typer.Option(help="The predictor to write (safetensors).")],
    more_tables: MoreTables = None,
) -> None:
    """Make a predictor of the tables of two devices or more."""
    with importing("edge-agent"):
        from edge_agent.planning.prediction import predictor_to_bytes

    devices = _known(tables, more_tables)
    content = predictor_to_bytes(devices)
    write_whole(out, lambda scratch: scratch.write_bytes(content))
    typer.echo(f"predictor: {out} ({len(devices.names)} devices, {len(devices.layers_ML)} sub-models)")


@predictor.command("complete")
def complete_command(
    predictor_file: Annotated[Path, typer.Option("--predictor", help="What `predictor train` has written.")],
    table: Annotated[Path, typer.Option("--table", help="Latency table of this device with its reference, or more.")],
    out: Annotated[Path, typer.Option(help="The table to write, with every contiguous sub-model.")],
) -> None:
    """Predict every contiguous sub-model that a table lacks; what was measured stays."""
    with importing("edge-agent"):
        from edge_agent.planning.prediction import complete, load_predictor, load_table, table_to_json

    completed = complete(load_predictor(predictor_file), load_table(table))
    text = table_to_json(completed)
    write_whole(out, lambda scratch: scratch.write_text(text))
    typer.echo(f"table: {out} ({len(completed.samples)} sub-models)")


@predictor.command("evaluate")
def evaluate_command(
    tables: Tables,
    unseen: Annotated[Path, typer.Option(help="Table of the device to predict; only its reference is used for that.")],
    more_tables: MoreTables = None,
    samples: Annotated[
        int, typer.Option("--samples", help="Samples of it that are used beside its reference.", min=0, max=200)
    ] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of a table.")] = False,
) -> None:
    """Predict a device that was never seen, and compare with what was measured."""
    with importing("edge-agent"):
        from edge_agent.planning.installed import PREDICTIONS, installed_function
        from edge_agent.planning.prediction import load_table

    print_evaluation = installed_function(PREDICTIONS, "the evaluation of a predictor")
    print_evaluation(_known(tables, more_tables), load_table(unseen), samples, as_json=as_json)


def _known(first: list[Path], more: list[Path] | None) -> "KnownDevices":
    from edge_agent.planning.prediction import known_devices, load_table

    paths = [*first, *(more or [])]
    if len(set(paths)) < len(paths):
        raise PlanError("--tables names a file twice; a device counts once")
    return known_devices({str(path): load_table(path) for path in paths})
