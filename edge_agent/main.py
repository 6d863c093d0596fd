"""`edge-agent`: parses, builds, runs and closes.

A command imports its code when it is called: most of them do not need torch, and no --help needs the configuration.
"""

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edge_agent.afterwards.command import evaluate, export, predict
from edge_agent.commands.forget import forget
from edge_agent.commands.history import history
from edge_agent.commands.init import init
from edge_agent.commands.placement import placement
from edge_agent.commands.plan import plan
from edge_agent.commands.profile import profile
from edge_agent.commands.simulate import simulate
from edge_agent.commands.timeline import timeline
from edge_agent.control import commands as control_commands
from edge_agent.demo.command import demo
from edge_agent.doctor.command import doctor
from edge_agent.late_config import edge_config, load_edge_config
from edge_agent.replaying.command import replay
from isthmus_entry_points import importing
from shared.commands.entry import add_config, add_version, run_command
from shared.commands.options import ConfigFile, Overrides
from shared.errors import ConfigError
from shared.files.private_files import state_directory

if TYPE_CHECKING:
    from edge_agent.config import EdgeConfig

app = typer.Typer(
    help="Train a model with its first blocks on this device and the others beside a GPU.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
add_version("edge-agent", app)


@app.command()
def run(
    config: ConfigFile = None,
    overrides: Overrides = None,
    trainer: Annotated[str | None, typer.Option(help="host:port of the trainer (trainer.address).")] = None,
    cut: Annotated[int | None, typer.Option(help="How many blocks run here (deployment.cut).")] = None,
    output: Annotated[Path | None, typer.Option(help="Folder for summary and model (output.directory).")] = None,
    trace: Annotated[Path | None, typer.Option(help="File for the time line of both sides (output.trace).")] = None,
    web: Annotated[str | None, typer.Option(help="host:port of a page that shows and steers it (web.listen).")] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Go on with the newest session of this experiment that was interrupted, if any."),
    ] = False,
    session: Annotated[str | None, typer.Option(help="Go on with this session (see `edge-agent sessions`).")] = None,
) -> None:
    """Train under the configured placement, then print a table and, where an output folder is set, the path of the summary."""
    with importing("edge-agent"):
        import asyncio

        from rich.console import Console

        from edge_agent.commands.run_service import run_service
        from edge_agent.commands.terminal import LogLines, live_bar, summary_table
        from edge_agent.sessions.resuming import Resume
        from edge_agent.training.results_folders import results_folders
        from shared.commands.process_log import process_log

    named = {"trainer.address": trainer, "deployment.cut": cut, "output.directory": output, "output.trace": trace}
    named["web.listen"] = web
    flags = [*(overrides or []), *(f"{key}={value}" for key, value in named.items() if value is not None)]
    loaded, going_on = load_edge_config(config, flags), None
    terminal = Console(stderr=True)
    with process_log(loaded.log, LogLines(terminal)):
        if goes_on := resume or session is not None:
            loaded, going_on = _gone_on_with(loaded, config, flags, session)
        with results_folders(loaded.output), live_bar(terminal) as bar:
            result = asyncio.run(
                run_service(
                    loaded,
                    bar.show,
                    resume=Resume(going_on) if goes_on else None,
                    resume_command=_resume_command(loaded, config, flags),
                )
            )
    console, directory = Console(), loaded.output.directory
    console.print(summary_table(result.summary))
    if directory is not None:
        typer.echo(f"summary: {directory / 'summary.json'}")


@app.command("check-steps")
def check_steps_command(
    log: Annotated[Path, typer.Argument(help="Step log of a session (checkpoints.step_log).")],
    against: Annotated[
        Path | None, typer.Option(help="Step log of an undisturbed run, to compare hashes with.")
    ] = None,
) -> None:
    """Prove from a step log that each step was applied once, and with the same data as in another run."""
    from shared.training.step_log import check_steps

    typer.echo(f"{check_steps(log, against)} steps, each applied once")


@app.command()
def model(
    config: ConfigFile = None,
    overrides: Overrides = None,
    factory: Annotated[str | None, typer.Option(help="package.module:factory, instead of a configuration.")] = None,
    example: Annotated[
        str | None,
        typer.Option(help="Shape of a batch, as 32x3x32x32 or 8x64:int64<1000; that of data.train if absent."),
    ] = None,
    kwargs: Annotated[str, typer.Option(help="Keyword arguments of the factory, a JSON object.")] = "{}",
    explain: Annotated[
        bool,
        typer.Option("--explain", help="Say of each two layers in one block what is in the way of a cut between them."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of a table.")] = False,
) -> None:
    """Show a model as a chain of blocks: parameters, what the optimizer keeps for them, and what each hands on."""
    with importing("edge-agent"):
        from functools import partial

        from rich.console import Console

        from edge_agent.commands.model import (
            describe_first_weights,
            describe_seams,
            render_slots,
            render_table,
            to_json,
        )
        from edge_agent.experiment.model_report import describe_chain
        from edge_agent.experiment.model_report import explain as seams_of
        from edge_agent.experiment.workload import Workload
        from shared.model.build import build_checked_chain, parse_kwargs
        from shared.model.learning import Learning
        from shared.model.spec import parse_examples
        from shared.registry.corrections import with_kept_momentum
        from shared.training.optimizers import optimizer_bytes

    loaded, first_weights = load_edge_config(config, overrides), None
    if factory is not None and example is not None:
        chain = build_checked_chain(
            *(factory, parse_kwargs(kwargs), 0, parse_examples(example)),
            learning=Learning(loaded.model.frozen, loaded.model.learns, loaded.model.frozen_mode),
            output=loaded.model.output,
            public_inputs=loaded.privacy.public_inputs,
        )
    elif factory is None and example is None and kwargs == "{}":
        workload = Workload(loaded)
        chain, first_weights = workload.chain, workload.first_weights
    else:
        missing = "--example" if example is None else "--factory"
        raise ConfigError(f"{missing} is missing; give --factory and --example, or neither, for what --config says")
    rows = describe_chain(
        chain,
        partial(optimizer_bytes, config=with_kept_momentum(loaded.training.optimizer, loaded.staleness_correction)),
    )
    seams = seams_of(chain) if explain else None
    if as_json:
        typer.echo(to_json(rows, seams))
        return
    Console().print(render_table(rows), render_slots(rows))
    if first_weights is not None:
        typer.echo(describe_first_weights(first_weights))
    if seams is not None:
        typer.echo(describe_seams(seams))


control_commands.register(app)
app.command()(demo)
app.command()(evaluate)
app.command()(export)
app.command()(forget)
app.command()(history)
app.command()(init)
app.command()(placement)
app.command()(plan)
app.command()(predict)
app.command()(profile)
app.command()(simulate)
app.command()(timeline)
app.command()(replay)
app.command()(doctor)
add_config(app, edge_config)


def _gone_on_with(
    loaded: "EdgeConfig", config: Path | None, flags: list[str], session: str | None
) -> "tuple[EdgeConfig, str | None]":
    """Return the configuration to train under, and the stored session to resume.

    Without a file the session's record takes its place.
    loaded: the configuration without a session to continue. session: the id of the only candidate, if one is named.
    """
    from edge_agent.sessions.resuming import choose_session
    from edge_agent.sessions.session_record import SessionRecord
    from edge_agent.sessions.stored_session import sessions_folder
    from shared.config import toml_value

    location = f"checkpoints.location={toml_value(loaded.checkpoints.location)}"  # where the session was found

    def config_for(record: SessionRecord) -> "EdgeConfig":
        return loaded if config is not None else load_edge_config(None, [*flags, location], recorded=record.config)

    chosen = choose_session(sessions_folder(loaded), config_for, session)
    return (loaded, None) if chosen is None else (chosen.config, chosen.session_id)


def _resume_command(loaded: "EdgeConfig", config: Path | None, flags: list[str]) -> str:
    """Return the command that a user types to go on with this run; a token is not shown."""
    file = [] if config is None else ["--config", str(config)]
    shown = [f"--set={flag}" for flag in flags if not flag.strip().startswith("trainer.token=")]
    if (
        loaded.checkpoints.location == "auto" and "STATE_DIRECTORY" in os.environ
    ):  # of a service; a shell has another one
        shown.append(f"--set=checkpoints.location={state_directory()}")
    return shlex.join(["edge-agent", "run", "--resume", *file, *shown])


def main() -> None:
    """The console script."""
    run_command("edge-agent", app)


if __name__ == "__main__":
    main()
