"""`edge-agent profile`: the measured costs of a model on a pair of workers, on a chain or on three tiers, or on one worker."""

import sys
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from edge_agent.commands.plans.plan_options import ANY, GIVEN, refuse_others
from edge_agent.late_config import load_edge_config
from edge_agent.profiling.calibrate_on import CalibrateOn
from isthmus_entry_points import importing
from shared.commands.options import ConfigFile, Overrides, one_of, whole_numbers
from shared.errors import ConfigError

if TYPE_CHECKING:
    from edge_agent.config import EdgeConfig
    from edge_agent.improvement_config import FollowedFigure
    from edge_agent.planning.prediction import KnownDevices
    from edge_agent.profiling.calibration_trainings import CalibrationSettings
    from edge_agent.profiling.events import PieceDone
    from shared.events import Emit

T = TypeVar("T")
SEVERAL, ONE_WORKER, CALIBRATION = "With several trainers", "A latency table", "Calibration"
"""Panels of the help."""
OF_TABLES = {"out", "config", "overrides", "trainer", "repeats", "worker", "device", "known"}
"""Options that say something about a latency table."""


def profile(
    context: typer.Context,
    out: Annotated[Path, typer.Option(help="The profile, or the latency table, to write (JSON).")],
    config: ConfigFile = None,
    overrides: Overrides = None,
    trainer: Annotated[str | None, typer.Option(help="host:port of the trainer (trainer.address).")] = None,
    repeats: Annotated[
        int, typer.Option(help="Steps timed at each cut, or of each run of blocks.", min=2, max=1000)
    ] = 10,
    order: Annotated[
        str,
        typer.Option(
            help="Whether its trainers may stand in another order.", rich_help_panel=SEVERAL, **one_of([GIVEN, ANY])
        ),
    ] = GIVEN,
    tables: Annotated[
        list[str] | None,
        typer.Option(
            "--table",
            help="NAME=FILE, a worker and its latency table, whose times are then not measured. Repeatable.",
            rich_help_panel=SEVERAL,
        ),
    ] = None,
    tiers: Annotated[
        bool,
        typer.Option(
            "--tiers",
            help="Time each block by samples, on this device and two trainers, for plans that divide samples.",
            rich_help_panel=SEVERAL,
        ),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what measuring costs, and end there.")] = False,
    worker: Annotated[
        str | None,
        typer.Option(
            help="Time all runs of blocks of one worker alone: a trainer by its name, or this device (edge).",
            rich_help_panel=ONE_WORKER,
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(help="What its table calls it; the worker's name when absent.", rich_help_panel=ONE_WORKER),
    ] = None,
    known: Annotated[
        list[Path] | None,
        typer.Option(
            help="Table of a known device; by two or more only ten runs are measured, and the others predicted, of the worker, "
            "or of those of --table. Repeatable.",
            rich_help_panel=ONE_WORKER,
        ),
    ] = None,
    calibrate: Annotated[
        bool,
        typer.Option(
            "--calibrate",
            help="Train copies of the model too, to find the fewest bits and the largest K.",
            rich_help_panel=CALIBRATION,
        ),
    ] = False,
    on: Annotated[
        CalibrateOn,
        typer.Option(
            "--on",
            help="Who trains the copies: this device on data.train, or the trainer on its operator's stand-in.",
            rich_help_panel=CALIBRATION,
        ),
    ] = CalibrateOn.DEVICE,
    budget: Annotated[
        float,
        typer.Option(
            "--calibrate-budget",
            help="Accuracy that bits and K may cost, in points; of another metric, per cent.",
            min=0.0,
            max=100.0,
            rich_help_panel=CALIBRATION,
        ),
    ] = 1.0,
    epochs: Annotated[
        int,
        typer.Option(
            "--calibrate-epochs",
            help="Epochs of a whole training; most trainings are half of that or less.",
            min=1,
            rich_help_panel=CALIBRATION,
        ),
    ] = 5,
    metric: Annotated[
        str | None,
        typer.Option(
            "--calibrate-metric",
            help="What copies are compared by: loss, or one of training.metrics; accuracy when absent.",
            rich_help_panel=CALIBRATION,
        ),
    ] = None,
    mode: Annotated[
        str | None,
        typer.Option(
            "--calibrate-mode",
            help="Which is better of one of training.metrics.",
            rich_help_panel=CALIBRATION,
            **one_of(["min", "max"]),
        ),
    ] = None,
    seeds: Annotated[
        int, typer.Option("--calibrate-seeds", help="Trainings of each candidate.", min=1, rich_help_panel=CALIBRATION)
    ] = 3,
    staleness: Annotated[
        int, typer.Option("--calibrate-staleness", help="Largest K to try.", min=0, rich_help_panel=CALIBRATION)
    ] = 8,
    cuts: Annotated[
        str | None,
        typer.Option(
            "--calibrate-cuts",
            help="Cuts to calibrate, as 2,3; `plan` then considers only these. All if absent.",
            rich_help_panel=CALIBRATION,
        ),
    ] = None,
    bits: Annotated[
        str, typer.Option("--calibrate-bits", help="Bit widths to try, beside 32.", rich_help_panel=CALIBRATION)
    ] = "2,4,8",
) -> None:
    """Measure what each cut of the model costs on this device and on the trainer, or with several trainers what runs of blocks
    cost along the chain, or blocks by samples; an interrupted run goes on. Or make the latency table of one worker."""
    with importing("edge-agent"):
        from edge_agent.profiling.calibration_trainings import CalibrationSettings

    if on is not CalibrateOn.DEVICE and not calibrate:
        raise ConfigError(f"--on {on} says who trains copies; it goes with --calibrate")
    flags = [*(overrides or []), *([f"trainer.address={trainer}"] if trainer else [])]
    loaded = load_edge_config(config, flags)
    if worker is not None:
        refuse_others(context, OF_TABLES, "says nothing about a latency table")
        _measure_worker(loaded, out, worker, repeats, known or [], device)
        return
    if device is not None or (known and not tables):
        raise ConfigError("--device and --known are for a latency table; give --worker, or --known with --table")
    if isinstance(loaded.training.precision, dict):
        raise ConfigError(
            "training.precision differs between workers, and a profile is measured in one; give it one name"
        )
    if loaded.member is not None:
        raise ConfigError("group is set; a profile is measured with the trainers alone, so leave the group out for it")
    if len(loaded.all_trainers) > 1:
        if calibrate:
            raise ConfigError("--calibrate finds out what a pair of workers bears; with several trainers leave it out")
        if tiers and (tables or order != GIVEN):
            raise ConfigError("--order and --table are for a chain, and --tiers measures three tiers; leave them out")
        if tiers:
            _profile_tiers(loaded, out, repeats, dry_run=dry_run)
        else:
            _profile_chain(loaded, out, repeats, order, tables or [], known or [], dry_run=dry_run)
        return
    if tables or tiers or order != GIVEN:
        raise ConfigError(
            "--order, --table and --tiers are for several trainers, and only one is configured; leave them out"
        )
    settings = CalibrationSettings(
        budget_points=budget,
        epochs=epochs,
        seeds=seeds,
        most_staleness=staleness,
        cuts=None if cuts is None else whole_numbers("--calibrate-cuts", cuts),
        bits=whole_numbers("--calibrate-bits", bits),
        on=on,
        figure=_figure(loaded, metric, mode),
    )
    _profile_pair(loaded, out, repeats, settings if calibrate else None, dry_run=dry_run)


def _figure(config: "EdgeConfig", metric: str | None, mode: str | None) -> "FollowedFigure":
    """Return the figure by which copies are judged. Raises ConfigError for one that is not computed."""
    from edge_agent.improvement_config import FollowedFigure, check_figure
    from shared.registry.metrics import ACCURACY

    figure = FollowedFigure.model_validate({"metric": metric or ACCURACY, "mode": mode})
    try:
        check_figure("--calibrate-metric", figure, config)
    except ValueError as cause:
        raise ConfigError(str(cause)) from cause
    return figure


def _profile_pair(
    config: "EdgeConfig", out: Path, repeats: int, calibration: "CalibrationSettings | None", *, dry_run: bool
) -> None:
    with importing("edge-agent"):
        from edge_agent.profiling.events import CopyTrained
        from edge_agent.profiling.workers.pair_profile import profile_pair

    copies: dict[type[PieceDone], str] = {} if calibration is None else {CopyTrained: "training copies"}
    profile = _measured(
        config,
        "profiling cuts",
        lambda emit: profile_pair(config, out, repeats, emit, calibration=calibration, dry_run=dry_run),
        more=copies,
    )
    if profile is not None:
        typer.echo(f"profile: {out}")


def _profile_chain(
    config: "EdgeConfig", out: Path, repeats: int, order: str, tables: list[str], known: list[Path], *, dry_run: bool
) -> None:
    with importing("edge-agent"):
        from edge_agent.planning.prediction import complete, load_table
        from edge_agent.profiling.workers.chain_profile import profile_chain

    files = dict(_name_and_file(each) for each in tables)
    if len(files) < len(tables):
        raise ConfigError(f"--table is given twice for one worker: {', '.join(tables)}; give one table for each")
    read = {name: load_table(path) for name, path in files.items()}
    if (devices := _devices(known)) is not None:
        read = {name: complete(devices, table) for name, table in read.items()}
    any_order = order == ANY
    chain = _measured(
        config,
        "profiling the chain",
        lambda emit: profile_chain(config, out, repeats, emit, any_order=any_order, tables=read, dry_run=dry_run),
    )
    if chain is not None:
        typer.echo(f"chain: {out}")


def _profile_tiers(config: "EdgeConfig", out: Path, repeats: int, *, dry_run: bool) -> None:
    with importing("edge-agent"):
        from edge_agent.profiling.workers.tiers_profile import profile_tiers

    profile = _measured(
        config, "profiling three tiers", lambda emit: profile_tiers(config, out, repeats, emit, dry_run=dry_run)
    )
    if profile is not None:
        typer.echo(f"tiers: {out}")


def _measure_worker(
    config: "EdgeConfig", out: Path, worker: str, repeats: int, known: list[Path], device: str | None
) -> None:
    with importing("edge-agent"):
        from edge_agent.planning.prediction import table_to_json
        from edge_agent.profiling.latency_table import measure_table
        from shared.files.whole_file import write_whole

    if device == "":
        raise ConfigError('--device is ""; it must be a name')
    devices = _devices(known)
    table = _measured(
        config,
        "measuring runs of blocks",
        lambda emit: measure_table(config, worker, repeats, devices, emit, device=device),
    )
    text = table_to_json(table)
    write_whole(out, lambda scratch: scratch.write_text(text))
    typer.echo(f"table: {out} ({len(table.samples)} runs of blocks)")


def _measured(
    config: "EdgeConfig",
    pieces: str,
    measure: "Callable[[Emit], Coroutine[Any, Any, T]]",
    more: "Mapping[type[PieceDone], str] | None" = None,
) -> T:
    """Measure, say what it costs, and show on standard error how far it is. pieces, more: what is counted."""
    with importing("edge-agent"):
        import asyncio

        from rich.console import Console

        from edge_agent.commands.terminal import counting_bars
        from edge_agent.profiling.events import Estimated, PieceMeasured
        from shared.commands.process_log import process_log

    console = Console(stderr=True)
    bars = counting_bars(console, {PieceMeasured: pieces, **(more or {})})
    with process_log(config.log, sys.stderr), bars as events:
        events.subscribe(Estimated, lambda event: typer.echo(event.line))
        return asyncio.run(measure(events.emit))


def _devices(known: list[Path]) -> "KnownDevices | None":
    """Return the devices of these tables; None where there are none."""
    from edge_agent.planning.prediction import known_devices, load_table

    if len(set(known)) < len(known):
        raise ConfigError("--known names a file twice; a device counts once")
    return known_devices({str(path): load_table(path) for path in known}) if known else None


def _name_and_file(text: str) -> tuple[str, Path]:
    name, equals, path = text.partition("=")
    if not (name and equals and path):
        raise ConfigError(f"--table is {text!r}; it must be the name of a worker and a file, as near=near.json")
    return name, Path(path)
