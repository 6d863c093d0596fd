"""`edge-agent placement`: the blocks and memory of each worker, the crossings, and the data that each worker sees."""

import json
from pathlib import Path
from typing import Annotated

import typer

from edge_agent.late_config import load_edge_config
from isthmus_entry_points import importing
from shared.commands.options import ConfigFile, Overrides


def placement(
    config: ConfigFile = None,
    overrides: Overrides = None,
    file: Annotated[
        Path | None, typer.Option(help="Placement (JSON) to show in place of the configuration's (placement.file).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of a picture and tables.")] = False,
) -> None:
    """Show which worker runs which blocks, what crosses between them, what each must hold and sees. Contacts nobody."""
    with importing("edge-agent"):
        from rich.console import Console

        from edge_agent.commands.placement_tables import render, to_document
        from edge_agent.experiment.placement_report import report_on
        from edge_agent.experiment.workload import Workload
        from edge_agent.placement_config import PlacementSection

    loaded = load_edge_config(config, overrides)
    if file is not None:
        loaded = loaded.model_copy(
            update={
                "deployment": loaded.deployment.model_copy(update={"cut": None}),
                "placement": PlacementSection(file=file),
            }
        )
    workload = Workload(loaded)
    try:
        report = report_on(workload)
    finally:
        workload.close()
    if as_json:
        typer.echo(json.dumps(to_document(report), indent=2))
    else:
        render(report, Console())
