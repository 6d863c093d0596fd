"""The log of a process of ours, and all other lines on its standard error."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOBase
from typing import TextIO

from shared.config.sections import LogConfig
from shared.telemetry.logs import configure_logs
from shared.telemetry.raw_lines import RawLines, raw_lines

_format: str | None = None
"""The format that the log of this process was configured with; None where it has none."""


def ends_in_log() -> bool:
    """Tell whether the last sentence of this process is for its log, because its reader was promised JSON.

    By default, with a format that depends on the log's place, it is for the user of the command.
    """
    return _format == "json"


@contextmanager
def process_log(config: LogConfig, at_terminal: TextIO | TextIOBase | None = None) -> Iterator[RawLines | None]:
    """Log as configured, to standard error; until the block ends, what libraries write there is a part of the log.

    at_terminal: where the log goes where standard error is a terminal, which is then left as it is. None reads it there, too.
    """
    global _format
    _format = config.format
    is_replaced = sys.stderr is not sys.__stderr__
    if is_replaced or (at_terminal is not None and sys.stderr.isatty()):
        configure_logs(config.level, config.format, at_terminal)
        yield None
        return
    with raw_lines() as lines:
        configure_logs(config.level, config.format, lines.stream)
        yield lines
