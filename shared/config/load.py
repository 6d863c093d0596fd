"""Loading a configuration: flags over environment over file over defaults, and one clear sentence when it is wrong.

The three sources are laid over each other as plain nested tables, remembering who set what; the types then judge the
result once. What the keys mean is not known here.
"""

import copy
import difflib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from shared.config.describe import Schema, allowed_text, schema_at
from shared.config.keys import tables
from shared.config.section import Config
from shared.config.toml import parse_toml, toml_value
from shared.errors import ConfigError

ConfigT = TypeVar("ConfigT", bound=Config)
Key = tuple[str, ...]
_MOST_MEANT = 3
"""Most keys of other sections that are named where one has the right name in the wrong place."""
_CLOSE = 0.75
"""Likeness from which on a key may be a slip of another; `batch_sampler` is like `batch_size` by 0.7."""
_SHOWN_VALUE_CHARACTERS = 80


def load_config(
    cls: type[ConfigT],
    path: Path | str | None,
    overrides: Sequence[str] = (),
    environ: Mapping[str, str] = os.environ,
    *,
    recorded: Mapping[str, Any] | None = None,
) -> ConfigT:
    """The configuration of type `cls`.

    path: a TOML file, or None for no file.
    recorded: nested tables in the file's place, as a session's record holds them.
    overrides: flags as `section.key=value`; a later one wins.
    environ: variables named by the class's prefix and the key in capitals with `__` for each dot. Every variable with
        that prefix must name a key. Keys inside a table of the user's own (`kwargs`) become lower case.
    A value of a flag or variable is read as TOML (`5`, `true`, `[1, 2]`, `{ width = 16 }`), and as a plain string when
        it is none or its key holds text. It replaces what stood at its key; a table is replaced whole. Text that stands
        for a table (`ShortSection`) is its one key where another layer sets a key inside.
    Raises ConfigError: one sentence that names the key, the source and what is allowed.
    """
    if path:
        layers = _Layers(cls, _read_file(Path(path)), str(path))
    else:
        layers = _Layers(cls, copy.deepcopy(dict(recorded or {})), "the session's record")
    for key, text, source in (*_variables(cls.environment_prefix, environ), *_flags(overrides)):
        layers.set(key, _parse_value(text, schema_at(cls, key), source), source)
    try:
        # As JSON, because there a list may be a tuple and a string a path although the types are strict.
        return cls.model_validate_json(json.dumps(layers.data, default=str))
    except ValidationError as error:
        raise ConfigError(_sentence(cls, error, layers)) from None


def _read_file(path: Path) -> dict[str, Any]:
    try:
        return parse_toml(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"configuration file {path} does not exist") from None
    except OSError as error:
        raise ConfigError(f"configuration file {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"configuration file {path} is not a text file in UTF-8") from None
    except ValueError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None


def _variables(prefix: str, environ: Mapping[str, str]) -> Iterator[tuple[Key, str, str]]:
    """Key, text and source of each variable; that of a table comes before those of keys inside it."""
    for name in sorted(environ):
        if name.startswith(prefix):
            yield tuple(name.removeprefix(prefix).lower().split("__")), environ[name], name


def _flags(overrides: Sequence[str]) -> Iterator[tuple[Key, str, str]]:
    """Key, text and source of each flag."""
    for override in overrides:
        dotted, separator, text = override.partition("=")
        if not separator:
            raise ConfigError(f"flag {override!r} sets nothing; write it as section.key=value")
        yield tuple(dotted.strip().split(".")), text, f"flag {override!r}"


def _parse_value(text: str, schema: Schema | None, source: str) -> Any:
    """`text` as TOML, or as it stands: where it is no TOML value, or is one that its key cannot hold but as text."""
    if any("\ud800" <= character <= "\udfff" for character in text):  # how Python passes on bytes that are no text
        raise ConfigError(f"{source}: the value is not text in UTF-8")
    try:
        parsed = parse_toml(f"value = {text}")
    except ValueError:
        return text
    value = parsed.pop("value")
    wants_text = schema is not None and schema.get("type") == "string"
    if parsed or not isinstance(value, str if wants_text else bool | int | float | str | list | dict):
        return text
    return value


class _Layers:
    """Nested tables laid over each other, and which source set each key last."""

    def __init__(self, cls: type[Config], file_data: dict[str, Any], file_name: str) -> None:
        self._cls = cls
        self.data = file_data
        self._sources: dict[Key, str] = dict.fromkeys(_leaves(file_data), file_name)

    def set(self, key: Key, value: Any, source: str) -> None:
        table = self.data
        for depth, name in enumerate(key[:-1], start=1):
            if not isinstance(there := table.get(name), dict):
                short = (schema_at(self._cls, key[:depth]) or {}).get("short")
                table[name] = {short: there} if short and isinstance(there, str) else {}
            table = table[name]
        table[key[-1]] = value
        self._sources.pop(key, None)  # to the end: the last entry is the one that counts
        self._sources[key] = source

    def source_of(self, key: Key) -> str | None:
        """Name the source that last set this key, something in it, or the table that it is in."""
        related = [source for at, source in self._sources.items() if at[: len(key)] == key[: len(at)]]
        return related[-1] if related else None

    def only_source(self) -> str | None:
        """Name the source of everything that is set, where that is one source."""
        sources = set(self._sources.values())
        return sources.pop() if len(sources) == 1 else None


def _leaves(table: Mapping[str, Any], at: Key = ()) -> Iterator[Key]:
    for name, value in table.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, (*at, name))
        else:
            yield (*at, name)


def _sentence(cls: type[Config], error: ValidationError, layers: _Layers) -> str:
    details = error.errors(include_url=False)
    first = details[0]
    names = tuple(str(part) for part in first["loc"])
    source = layers.source_of(names) or layers.source_of(names[:-1]) if names else layers.only_source()
    others = len(details) - 1
    more = f" ({others} more {'setting is' if others == 1 else 'settings are'} wrong)" if others else ""
    return f"{source or 'configuration'}: {_complaint(cls, first)}{more}"


def _complaint(cls: type[Config], detail: ErrorDetails) -> str:
    location = detail["loc"]
    dotted = ".".join(map(str, location))
    if detail["type"] == "extra_forbidden":
        return _unknown_key(cls, location)
    schema = schema_at(cls, location) or {}
    if detail["type"] == "missing":
        return f"{dotted} is missing; it must be {allowed_text(schema)}"
    if detail["type"] == "value_error" and schema.get("type") == "object":
        message = str(detail["ctx"]["error"])  # a rule over several keys of one section, which speaks for itself
        return f"{dotted}: {message}" if dotted else message
    shown = _shown(detail["input"])
    return f"{dotted} is {shown}; it must be {allowed_text(schema)}"


def _unknown_key(cls: type[Config], location: tuple[str | int, ...]) -> str:
    known = list((schema_at(cls, location[:-1]) or {}).get("properties", {}))
    unknown = ".".join(map(str, location))
    where = ".".join(map(str, location[:-1]))
    close = difflib.get_close_matches(str(location[-1]), known, n=1, cutoff=_CLOSE)
    meant = [".".join(filter(None, (where, name))) for name in close] or [
        ".".join((*table.path, key.name)) for table in tables(cls) for key in table.keys if key.name == location[-1]
    ]
    if 0 < len(meant) <= _MOST_MEANT:
        return f"unknown key {unknown}; did you mean {' or '.join(meant)}?"
    return f"unknown key {unknown}; {f'{where} has' if where else 'there are'} the keys {', '.join(known)}"


def _shown(value: Any) -> str:
    text = toml_value(value) if value is not None else "nothing"
    return text if len(text) <= _SHOWN_VALUE_CHARACTERS else text[: _SHOWN_VALUE_CHARACTERS - 3] + "..."
