"""`edge-agent doctor` on the command line: a table for a person, JSON for a program, and an exit code for a script."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from edge_agent.doctor.finding import Finding, Status
from edge_agent.late_config import load_edge_config
from isthmus_entry_points import importing
from shared.commands.options import ConfigFile, Overrides
from shared.errors import UnfitError

if TYPE_CHECKING:
    from rich.table import Table

_STYLES = {Status.OK: "green", Status.ADVICE: "yellow", Status.FIX: "bold red", Status.SKIPPED: "dim"}


def doctor(
    config: ConfigFile = None,
    overrides: Overrides = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of a table.")] = False,
) -> None:
    """Look at this device and at the way to each of its trainers, and say what to fix. Changes nothing, trains nothing."""
    with importing("edge-agent"):
        import asyncio

        from rich.console import Console

        from edge_agent.doctor.examine import examine

    findings = asyncio.run(examine(load_edge_config(config, overrides)))
    if as_json:
        typer.echo(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        Console().print(render_table(findings))
    check_fitness(findings)


def render_table(findings: Sequence[Finding]) -> "Table":
    """Return a table with one line a check. Its text may come from a peer and is shown literally, not as markup."""
    from rich.table import Column, Table
    from rich.text import Text

    wide = [Column(header, overflow="fold") for header in ("check", "result", "what to do")]
    table = Table(wide[0], "", *wide[1:])
    for finding in findings:
        style = _STYLES[finding.status]
        table.add_row(finding.check, f"[{style}]{finding.status}[/]", Text(finding.result), Text(finding.remedy))
    return table


def check_fitness(findings: Sequence[Finding]) -> None:
    """Raise UnfitError when something must be fixed."""
    broken = [finding.check for finding in findings if finding.status is Status.FIX]
    if broken:
        raise UnfitError(f"to be fixed before this device can train: {', '.join(broken)}; the report says how")
