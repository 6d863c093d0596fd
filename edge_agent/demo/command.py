"""`edge-agent demo`: a trainer and an agent, two real processes on loopback, train one model across a cut."""

import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from edge_agent.demo.processes import FILES, end_on_sigterm, running_trainer, script
from shared.commands.options import Overrides
from shared.errors import ConfigError


def demo(
    overrides: Overrides = None,
    files: Annotated[
        Path | None,
        typer.Option(
            help="Only copy the sample configurations, links and profiles into this new folder, to try plan with."
        ),
    ] = None,
) -> None:
    """Train a small network on handwritten digits in two processes on this machine, which end with it."""
    if files is not None:
        _copy(files)
        return
    end_on_sigterm()
    with tempfile.TemporaryDirectory() as scratch, running_trainer(Path(scratch) / "address") as (trainer, address):
        typer.echo(f"trainer: process {trainer.pid} at {address}")
        given = [
            f"--config={FILES / 'edge.toml'}",
            f"--trainer={address}",
            *(f"--set={one}" for one in overrides or []),
        ]
        code = subprocess.run([script("edge-agent"), "run", *given], check=False).returncode
    raise typer.Exit(code)


def _copy(folder: Path) -> None:
    """Copy the sample files into a folder that is not there yet, or raise ConfigError and leave none."""
    try:
        shutil.copytree(FILES, folder, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    except FileExistsError:
        raise ConfigError(f"--files: {folder} is there already; name a new folder") from None
    except (OSError, shutil.Error) as cause:
        shutil.rmtree(folder, ignore_errors=True)
        raise ConfigError(
            f"--files: {folder} cannot be written: {getattr(cause, 'strerror', None) or cause}"
        ) from cause
    for path in sorted(folder.iterdir()):
        typer.echo(path)
