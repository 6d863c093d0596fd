"""What both entry points do with errors: one line and the documented exit code for ours, a traceback for defects."""

import sys
from collections.abc import Callable
from importlib.metadata import version
from typing import Annotated

import typer

from shared.errors import ExitCode, IsthmusError, one_line
from shared.files.private_files import close_new_files
from shared.version import PROTOCOL_VERSION


def add_version(name: str, app: typer.Typer) -> None:
    """Give an application the flag --version."""

    def show(wanted: bool) -> None:
        if wanted:
            typer.echo(f"{name} {version('isthmus')}, protocol {PROTOCOL_VERSION}")
            raise typer.Exit

    @app.callback()
    def options(
        _version: Annotated[
            bool, typer.Option("--version", callback=show, is_eager=True, help="Print the version and exit.")
        ] = False,
    ) -> None:
        pass


def run_command(name: str, app: Callable[[], object]) -> None:
    """Run a command-line application, whose files are closed to other users; ends the process with its exit code."""
    close_new_files()
    try:
        app()
    except IsthmusError as error:
        print(f"{name}: {one_line(str(error))}", file=sys.stderr)
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, SystemExit) as ended:
        # typer makes of an interruption a silent exit with this very code.
        if isinstance(ended, SystemExit) and ended.code != ExitCode.INTERRUPTED:
            raise
        print(f"{name}: interrupted", file=sys.stderr)
        sys.exit(ExitCode.INTERRUPTED)
