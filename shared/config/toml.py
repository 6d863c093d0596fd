"""TOML text as tables that JSON can carry, with one kind of error for everything that can be wrong with it."""

import json
import tomllib
from typing import Any

MAX_DEPTH = 64
"""Levels of tables and arrays; far above any file of ours, and far below where Python's stack ends."""


def parse_toml(text: str) -> dict[str, Any]:
    """The tables of a text. Raises ValueError, which says what is wrong, for anything else.

    tomllib lets two more errors out than its own: of a number that is too long, and of tables nested too deeply.
    """
    too_deep = ValueError(f"it is nested more than {MAX_DEPTH} levels deep")
    try:
        tables = tomllib.loads(text)
    except RecursionError:
        raise too_deep from None
    level: list[Any] = [tables]
    for _ in range(MAX_DEPTH):
        values = (value for outer in level for value in (outer.values() if isinstance(outer, dict) else outer))
        level = [value for value in values if isinstance(value, dict | list)]
    if level:
        raise too_deep
    json.dumps(tables, default=str)  # hexadecimal numbers of any length were read, but could not be written
    return tables
