"""`edge-agent`: parses, builds, runs and closes."""

import asyncio
import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from edge_agent import timeline_command
from edge_agent.config import EdgeConfig, OutputConfig
from edge_agent.model_report import render_table, to_json
from edge_agent.progress import counting_bar, live_bar, summary_table
from shared.cli import run_command
from shared.config import example_toml, load_config
from shared.errors import ConfigError
from shared.model.build import build_checked_chain, parse_kwargs
from shared.model.report import describe_chain
from shared.model.spec import parse_example
from shared.telemetry.logs import configure_logs

app = typer.Typer(help="The edge's side of split training.", no_args_is_help=True, pretty_exceptions_enable=False)

ConfigFile = Annotated[Path | None, typer.Option("--config", "-c", help="Configuration file (TOML).")]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", help="section.key=value; overrides file and environment.")
]


@app.command()
def run(
    config: ConfigFile = None,
    overrides: Overrides = None,
    trainer: Annotated[str | None, typer.Option(help="host:port of the trainer (trainer.address).")] = None,
    cut: Annotated[int | None, typer.Option(help="How many blocks run here (deployment.cut).")] = None,
    output: Annotated[Path | None, typer.Option(help="Folder for summary and model (output.directory).")] = None,
    trace: Annotated[Path | None, typer.Option(help="File for the time line of both sides (output.trace).")] = None,
) -> None:
    """Train across the cut, then print a table and, where an output folder is set, the path of the summary."""
    from edge_agent.run import run_training

    named = {"trainer.address": trainer, "deployment.cut": cut, "output.directory": output, "output.trace": trace}
    flags = [*(overrides or []), *(f"{key}={value}" for key, value in named.items() if value is not None)]
    loaded = load_config(EdgeConfig, config, flags)
    _make_folders(loaded.output)
    console = Console()
    configure_logs(loaded.log.level, loaded.log.format)
    with live_bar(Console(stderr=True)) as bar:
        result = asyncio.run(run_training(loaded, bar.show))
    console.print(summary_table(result.summary))
    if loaded.output.directory is not None:
        typer.echo(f"summary: {result.write(loaded.output.directory)}")


@app.command()
def model(
    factory: Annotated[str, typer.Option(help="package.module:factory.")],
    example: Annotated[str, typer.Option(help="A batch of input, as 32x3x32x32 or 8x64:int64<1000.")],
    kwargs: Annotated[str, typer.Option(help="Keyword arguments of the factory, a JSON object.")] = "{}",
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of a table.")] = False,
) -> None:
    """Show a model as a chain of blocks: parameters, and what crosses the cut after each block."""
    rows = describe_chain(build_checked_chain(factory, parse_kwargs(kwargs), 0, parse_example(example)))
    if as_json:
        typer.echo(to_json(rows))
    else:
        Console().print(render_table(rows))


@app.command()
def profile(
    out: Annotated[Path, typer.Option(help="The profile to write (JSON).")],
    config: ConfigFile = None,
    overrides: Overrides = None,
    trainer: Annotated[str | None, typer.Option(help="host:port of the trainer (trainer.address).")] = None,
    repeats: Annotated[int, typer.Option(help="Steps timed at each cut.", min=2, max=1000)] = 10,
) -> None:
    """Measure what each cut of the model costs on this device and on the trainer; an interrupted run goes on."""
    from edge_agent.profiling import profile_model

    flags = [*(overrides or []), *([f"trainer.address={trainer}"] if trainer else [])]
    loaded = load_config(EdgeConfig, config, flags)
    configure_logs(loaded.log.level, loaded.log.format)
    with counting_bar(Console(stderr=True), "profiling cuts") as on_cut:
        asyncio.run(profile_model(loaded, repeats, out, on_cut))
    typer.echo(f"profile: {out}")


timeline_command.register(app)


@app.command("config")
def show_config(
    config: ConfigFile = None,
    overrides: Overrides = None,
    example: Annotated[bool, typer.Option(help="Print a commented file with every default instead.")] = False,
) -> None:
    """Print the configuration that is in force, or a commented example."""
    if example:
        typer.echo(example_toml(EdgeConfig), nl=False)
    else:
        typer.echo(load_config(EdgeConfig, config, overrides or []).model_dump_json(indent=2))


def _make_folders(output: OutputConfig) -> None:
    """Find out before a training, and not after it, that its results have no place."""
    wanted = {"output.directory": output.directory, "output.trace": output.trace and output.trace.parent}
    for key, folder in wanted.items():
        if folder is None:
            continue
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as cause:
            raise ConfigError(f"{key}: folder {folder} cannot be made: {cause.strerror}") from cause
        if not os.access(folder, os.W_OK):
            raise ConfigError(f"{key}: folder {folder} cannot be written to")


def main() -> None:
    """The console script."""
    run_command("edge-agent", app)


if __name__ == "__main__":
    main()
