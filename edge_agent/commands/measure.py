"""`edge-agent measure`: the latency table of this device, or of a trainer."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from edge_agent.config import EdgeConfig
from isthmus_entry_points import importing
from shared.commands.options import ConfigFile, Overrides
from shared.config import load_config
from shared.errors import ConfigError
from shared.files.whole_file import write_whole
from shared.placement import AGENT


def measure(
    out: Annotated[Path, typer.Option(help="The latency table to write (JSON).")],
    config: ConfigFile = None,
    overrides: Overrides = None,
    worker: Annotated[str, typer.Option(help="Who is measured: a trainer by its name, or this device.")] = AGENT,
    device: Annotated[
        str | None, typer.Option(help="What the table calls the device; the worker's name when absent.")
    ] = None,
    representative: Annotated[
        bool,
        typer.Option("--representative", help="Only ten sub-models, from which a predictor tells the others."),
    ] = False,
    predictor: Annotated[
        Path | None, typer.Option(help="Predictor (predictor train) that chooses the ten which tell most.")
    ] = None,
    rounds: Annotated[int, typer.Option(help="How often each sub-model is measured.", min=1, max=1000)] = 5,
    repeats: Annotated[int, typer.Option(help="Steps of each measurement.", min=1, max=1000)] = 5,
) -> None:
    """Time the model's runs of blocks, forward, backward and update, on this device or on a trainer."""
    with importing("edge-agent"):
        import asyncio

        from rich.console import Console

        from edge_agent.commands.terminal import counting_bars
        from edge_agent.planning.prediction import load_predictor, table_to_json
        from edge_agent.profiling.events import PieceMeasured
        from edge_agent.profiling.latency_table import MeasureSettings, measure_table
        from shared.commands.process_log import process_log

    loaded = load_config(EdgeConfig, config, overrides or [])
    if device == "":
        raise ConfigError('--device is ""; it must be a name')
    known = None if predictor is None else load_predictor(predictor)
    settings = MeasureSettings(worker, device, representative, rounds, repeats)
    bars = counting_bars(Console(stderr=True), {PieceMeasured: "measuring sub-models"})
    with process_log(loaded.log, sys.stderr), bars as events:
        table = asyncio.run(measure_table(loaded, settings, known, events.emit))
    text = table_to_json(table)
    write_whole(out, lambda scratch: scratch.write_text(text))
    typer.echo(f"table: {out} ({len(table.samples)} sub-models)")
