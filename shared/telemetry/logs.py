"""Logs: one line an event, for a person at a terminal or as JSON for a machine.

Every module logs through `structlog.get_logger(__name__)` or the standard `logging`; both end here and look the same.
What is bound, the session, stands on every line of the same task or thread. A thread starts with nothing bound.
"""

import logging
import sys
from io import TextIOBase
from typing import Literal, TextIO, get_args

import structlog
from structlog.types import Processor

Level = Literal["debug", "info", "warning", "error"]
LEVELS: tuple[Level, ...] = get_args(Level)
"""The levels, the least severe first."""


def configure_logs(
    level: Level = "info",
    format: Literal["auto", "text", "json"] = "auto",
    stream: TextIO | TextIOBase | None = None,
) -> None:
    """Send all logs and Python's warnings of this process to `stream` (None: standard error). May be called again.

    format: "auto" is text where `stream` is a terminal and JSON, one object a line, elsewhere.
    """
    stream = stream or sys.stderr
    enrich: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    render: list[Processor]
    if format == "text" or (format == "auto" and stream.isatty()):
        # A plain traceback: the pretty ones print local variables, and those hold the user's data.
        text = structlog.dev.ConsoleRenderer(
            colors=stream.isatty(), exception_formatter=structlog.dev.plain_traceback, pad_event_to=0
        )
        render = [text]
    else:
        render = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]

    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*enrich, structlog.stdlib.ExtraAdder()],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *render],
        )
    )
    root = logging.getLogger()
    for old in [known for known in root.handlers if _is_ours(known)]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())
    logging.captureWarnings(True)

    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *enrich,
            structlog.stdlib.PositionalArgumentsFormatter(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )


def log_level() -> Level:
    """The least severe level that is written."""
    level = logging.getLogger().level
    return next((name for name in LEVELS if logging.getLevelNamesMapping()[name.upper()] >= level), LEVELS[-1])


def set_log_level(level: Level) -> None:
    """Write this level and what is more severe from now on."""
    logging.getLogger().setLevel(level.upper())


def bind_session(session_id: str) -> None:
    """Put the session's id on every further line of this task or thread."""
    structlog.contextvars.bind_contextvars(session=session_id)


def _is_ours(handler: logging.Handler) -> bool:
    return isinstance(handler.formatter, structlog.stdlib.ProcessorFormatter)
