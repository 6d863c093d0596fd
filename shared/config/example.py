"""A complete, commented configuration file, written from the types; it loads back to their defaults."""

import textwrap
from collections.abc import Iterator

from shared.config.describe import toml_value
from shared.config.keys import Table, tables
from shared.config.section import Config

_COMMENT_WIDTH = 100


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
