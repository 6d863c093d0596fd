"""Logs: one line an event, for a person at a terminal or as strict JSON for a machine.

Every module logs through `structlog.get_logger(__name__)` or the standard `logging`; both end here and look the same.
Bound values stand on every line of the same task, and of its calls on other threads.
"""

import json
import logging
import math
import sys
from io import TextIOBase
from typing import Any, Literal, TextIO, get_args

import structlog
from structlog.types import EventDict, Processor

Level = Literal["debug", "info", "warning", "error"]
LEVELS: tuple[Level, ...] = get_args(Level)
"""The levels, the least severe first."""
process_keys: dict[str, Any] = {}
"""Keys that stand on every line of this process."""


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
        _merge_process,
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
        render = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(serializer=strict_json)]

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


def strict_json(value: Any, **options: Any) -> str:
    """`value` as JSON that every reader takes. NaN and infinities, which JSON has no number for, become strings.

    options: as `json.dumps` takes them.
    """
    try:
        return json.dumps(value, allow_nan=False, **options)
    except ValueError:
        return json.dumps(_finite(value), allow_nan=False, **options)


def log_level() -> Level:
    """The least severe level that is written."""
    level = logging.getLogger().level
    return next((name for name in LEVELS if logging.getLevelNamesMapping()[name.upper()] >= level), LEVELS[-1])


def set_log_level(level: Level) -> None:
    """Write this level and more severe ones from now on."""
    logging.getLogger().setLevel(level.upper())


def bind_run(run_id: str, session_id: str | None = None) -> None:
    """Put the run's id, and a trainer's own id of its session, on every further line of this task and of tasks that it
    begins."""
    structlog.contextvars.bind_contextvars(run=run_id, **({} if session_id is None else {"session": session_id}))


def bind_process_run(run_id: str) -> None:
    """Put the run's id on every further line of this process on which none is bound: it has this run alone."""
    process_keys["run"] = run_id


def _merge_process(_logger: Any, _method: str, event: EventDict) -> EventDict:
    return {**process_keys, **event}


def _finite(value: Any) -> Any:
    """`value` with strings for the floats that are no finite numbers."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return str(float(value)) if isinstance(value, float) and not math.isfinite(value) else value


def _is_ours(handler: logging.Handler) -> bool:
    return isinstance(handler.formatter, structlog.stdlib.ProcessorFormatter)
