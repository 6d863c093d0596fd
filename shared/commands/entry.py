"""The shared parts of both entry points: the version, the command `config`, and one line with an exit code for an error
of ours."""

import os
import sys
from collections.abc import Callable
from importlib.metadata import version
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from isthmus_entry_points import importing
from shared.commands.options import ConfigFile, Overrides
from shared.errors import ExitCode, IsthmusError, one_line
from shared.files.private_files import close_new_files
from shared.version import PROTOCOL_VERSION

if TYPE_CHECKING:
    from shared.config import Config


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


def add_config(app: typer.Typer, kind: "Callable[[], type[Config]]") -> None:
    """Give an application the command `config`. kind: imports the class of its configuration."""

    @app.command("config")
    def show_config(
        config: ConfigFile = None,
        overrides: Overrides = None,
        example: Annotated[bool, typer.Option(help="Print a commented file with every default instead.")] = False,
    ) -> None:
        """Print the configuration that is in force, or a commented example."""
        cls = kind()
        from shared.config import example_toml, load_config

        if example:
            typer.echo(example_toml(cls), nl=False)
        else:
            typer.echo(load_config(cls, config, overrides or []).model_dump_json(indent=2))


def run_command(name: str, app: Callable[[], object]) -> None:
    """Run a command-line application, whose files are closed to other users; ends the process with its exit code.

    Its last sentence goes to standard error, as an event of the log where that is to be JSON.
    """
    close_new_files()
    with importing(name):  # what typer imports later, where Ctrl-C might come out as any other error
        if sys.argv[1:] != ["--help"]:
            import pydantic  # noqa: F401
        if "--help" in sys.argv:
            import rich.console  # noqa: F401
    try:
        app()
    except IsthmusError as error:
        _say_last(name, one_line(str(error)), error.exit_code)
    except (KeyboardInterrupt, SystemExit) as ended:
        # typer makes of an interruption a silent exit with this very code.
        if isinstance(ended, SystemExit) and ended.code != ExitCode.INTERRUPTED:
            raise
        _say_last(name, "interrupted", ExitCode.INTERRUPTED)
    except Exception as defect:
        if not _ends_in_log():
            raise
        _say_last(name, f"a defect ({type(defect).__name__}: {defect})", ExitCode.INTERNAL, defect)


def _say_last(name: str, sentence: str, code: ExitCode, defect: Exception | None = None) -> NoReturn:
    """End the process with a sentence and its exit code. defect: keeps its traceback in the log."""
    if "NOTIFY_SOCKET" in os.environ:  # no other command has to wait for this import
        from shared.commands.service_manager import tell_last

        tell_last(sentence)
    if _ends_in_log():
        import structlog

        structlog.get_logger(__name__).error(f"{name}: {sentence}", exit_code=int(code), exc_info=defect)
    else:
        print(f"{name}: {sentence}", file=sys.stderr)
    sys.exit(code)


def _ends_in_log() -> bool:
    process_log = sys.modules.get("shared.commands.process_log")  # which a command imports that has a log
    return process_log is not None and process_log.ends_in_log()
