"""TOML text as tables that JSON can carry, with one kind of error for all that can be wrong with it; and values as TOML."""

import json
import re
import tomllib
from pathlib import PurePath
from typing import Any

from pydantic import BaseModel

MAX_DEPTH = 64
"""Levels of tables and arrays; far above any file of ours, and far below where Python's stack ends."""
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


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


def toml_value(value: Any) -> str:
    """`value` (bool, number, string, path, list, tuple, dict or section of these) on one line of TOML.

    Of a section, the keys that are not at their defaults.
    """
    match value:
        case BaseModel():
            return toml_value(value.model_dump(exclude_defaults=True, exclude_none=True))
        case bool():
            return "true" if value else "false"
        case int():
            return f"{value:_}" if abs(value) >= 100_000 else str(value)
        case float():
            return repr(value)
        case list() | tuple():
            return f"[{', '.join(map(toml_value, value))}]"
        case dict():
            items = ", ".join(f"{_toml_key(key)} = {toml_value(item)}" for key, item in value.items())
            return f"{{ {items} }}" if items else "{}"
        case str() | PurePath():
            return _toml_string(str(value))
        case _:
            raise TypeError(f"TOML has no {type(value).__name__}")


def _toml_key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else _toml_string(key)


def _toml_string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")  # TOML alone forbids a bare DEL
