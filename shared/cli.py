"""What both entry points do with errors: one line and the documented exit code for ours, a traceback for defects."""

import sys
from collections.abc import Callable

from shared.errors import ExitCode, IsthmusError


def run_command(name: str, app: Callable[[], object]) -> None:
    """Run a command-line application; ends the process with its exit code."""
    try:
        app()
    except IsthmusError as error:
        print(f"{name}: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print(f"{name}: interrupted", file=sys.stderr)
        sys.exit(ExitCode.INTERRUPTED)
