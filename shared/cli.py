"""What both entry points do with errors: one line and the documented exit code for ours, a traceback for defects."""

import sys
from collections.abc import Callable

from shared.errors import ExitCode, IsthmusError, one_line
from shared.private_files import close_new_files


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
