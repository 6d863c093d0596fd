"""`edge-agent placement`: what runs where, what crosses, what it takes of memory, and who sees what."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from edge_agent.commands.placement_tables import render
from edge_agent.config import EdgeConfig
from edge_agent.experiment.placement_report import PlacementReport, report_on
from edge_agent.experiment.workload import Workload
from edge_agent.placement_config import PlacementSection
from shared.commands.options import ConfigFile, Overrides
from shared.config import load_config
from shared.placement import document_of

SCHEMA = "isthmus.placement-report/v1"


def register(app: typer.Typer) -> None:
    """Add the command to an application."""
    app.command()(placement)


def placement(
    config: ConfigFile = None,
    overrides: Overrides = None,
    file: Annotated[
        Path | None, typer.Option(help="Placement (JSON) to show in place of the configuration's (placement.file).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of a picture and tables.")] = False,
) -> None:
    """Show which worker runs which blocks, what crosses between them, what each must hold and sees. Contacts nobody."""
    loaded = load_config(EdgeConfig, config, overrides or [])
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


def to_document(report: PlacementReport) -> dict[str, Any]:
    """The report as JSON; its placement can be read again as a file (schema isthmus.placement/v1)."""
    return {
        "schema": SCHEMA,
        "placement": document_of(report.placement),
        "blocks": list(report.block_names),
        "crossings": [
            {
                "from": one.crossing.sender,
                "to": one.crossing.receiver,
                "cargo": str(one.crossing.cargo),
                "block": one.crossing.index,
                "samples": [one.crossing.rows.begin, one.crossing.rows.end],
                "codec": one.codec,
                "bytes": one.bytes,
            }
            for one in report.transfers
        ],
        "memory": [
            {
                "worker": one.worker,
                "weights": one.weights,
                "gradients": one.gradients,
                "optimizer": one.optimizer,
                "activations": one.activations,
                "waiting": one.waiting,
                "total": one.total,
            }
            for one in report.memory
        ],
        "sees": [
            {
                "worker": one.worker,
                "inputs": one.inputs,
                "labels": one.labels,
                "outputs": one.outputs,
                "features": list(one.features),
                "weights": list(one.weights),
            }
            for one in report.sights
        ],
    }
