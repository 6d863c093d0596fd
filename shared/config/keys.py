"""Every key of a configuration with its meaning, its allowed values and its default, read from the types.

Also as a complete, commented file, which loads back to the defaults.
"""

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from shared.config.describe import allowed_text, schema_at
from shared.config.section import Config, Section
from shared.config.toml import toml_value

_COMMENT_WIDTH = 100


@dataclass(frozen=True, slots=True)
class Key:
    """One key. default: None where it is left out, and then `example` is a value that it may have."""

    name: str
    description: str
    allowed: str
    default: Any
    example: Any


@dataclass(frozen=True, slots=True)
class Table:
    """One section: its path from the root, its purpose, and its own keys."""

    path: tuple[str, ...]
    description: str
    keys: tuple[Key, ...]


def tables(cls: type[Config]) -> Iterator[Table]:
    """The sections of `cls`, each before those in it; the root, which has no description, first."""
    return _tables(cls, cls(), (), "")


def _tables(root: type[Config], section: Section, path: tuple[str, ...], description: str) -> Iterator[Table]:
    fields = type(section).model_fields
    nested = {name for name in fields if isinstance(getattr(section, name), Section)}
    yield Table(path, description, tuple(_key(root, section, path, name) for name in fields if name not in nested))
    for name in fields:
        if name in nested:
            yield from _tables(root, getattr(section, name), (*path, name), _one_line(section, path, name))


def _key(root: type[Config], section: Section, path: tuple[str, ...], name: str) -> Key:
    field, default = type(section).model_fields[name], getattr(section, name)
    schema = schema_at(root, (*path, name))
    assert schema is not None
    if default is None:
        assert field.examples, f"{'.'.join((*path, name))} has neither a default nor an example"
    example = field.examples[0] if field.examples else None
    return Key(name, _one_line(section, path, name), allowed_text(schema), default, example)


def _one_line(section: Section, path: tuple[str, ...], name: str) -> str:
    description = type(section).describe_key(name)
    assert description, f"{'.'.join((*path, name))} has no docstring"
    return " ".join(description.split())


def example_toml(cls: type[Config]) -> str:
    """The configuration file of `cls` with every key at its default, each under its docstring and what it may be.

    An optional key without a default is commented out as `#key = an example`. Words begin with `# `, keys with `#`.
    """
    lines = [
        f"# {cls.__name__}: every key with its default. A key may be left out, or be set over this file by a variable:",
        f"# {cls.environment_prefix} and the key in capitals, with __ for each dot.",
        "",
    ]
    for table in tables(cls):
        lines += _lines(table)
    return "\n".join(lines).rstrip() + "\n"


def _lines(table: Table) -> Iterator[str]:
    """The lines of one section, its own keys only; what is in it comes after them, as TOML wants it."""
    if table.description:
        yield from _comment(table.description)
    if table.path and table.keys:
        yield f"[{'.'.join(table.path)}]"
    for key in table.keys:
        yield from _comment(key.description)
        yield from _comment(f"Allowed: {key.allowed}.")
        yield (
            f"#{key.name} = {toml_value(key.example)}"
            if key.default is None
            else f"{key.name} = {toml_value(key.default)}"
        )
        yield ""


def _comment(text: str) -> list[str]:
    return textwrap.wrap(
        text,
        width=_COMMENT_WIDTH,
        initial_indent="# ",
        subsequent_indent="# ",
        break_on_hyphens=False,
    )
