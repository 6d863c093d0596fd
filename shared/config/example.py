"""A complete, commented configuration file, written from the types; it loads back to their defaults."""

import textwrap
from collections.abc import Iterator

from shared.config.describe import allowed_text, schema_at, toml_value
from shared.config.section import Config, Section

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
    return "\n".join([*lines, *_table(cls, cls(), ())]).rstrip() + "\n"


def _table(root: type[Config], section: Section, path: tuple[str, ...]) -> Iterator[str]:
    """The lines of one section: its own keys first, as TOML wants it, then its sections."""
    fields = type(section).model_fields
    nested = {name for name in fields if isinstance(getattr(section, name), Section)}
    own = [name for name in fields if name not in nested]
    if path and own:
        yield f"[{'.'.join(path)}]"
    for name in own:
        field = fields[name]
        schema = schema_at(root, (*path, name))
        assert schema is not None
        assert field.description, f"{'.'.join((*path, name))} has no docstring"
        yield from _comment(field.description)
        yield from _comment(f"Allowed: {allowed_text(schema)}.")
        value = getattr(section, name)
        if value is None:
            assert field.examples, f"{'.'.join((*path, name))} has neither a default nor an example"
            yield f"#{name} = {toml_value(field.examples[0])}"
        else:
            yield f"{name} = {toml_value(value)}"
        yield ""
    for name in fields:
        if name in nested:
            description = fields[name].description
            assert description, f"{'.'.join((*path, name))} has no docstring"
            yield from _comment(description)
            yield from _table(root, getattr(section, name), (*path, name))


def _comment(text: str) -> list[str]:
    return textwrap.wrap(
        " ".join(text.split()),
        width=_COMMENT_WIDTH,
        initial_indent="# ",
        subsequent_indent="# ",
        break_on_hyphens=False,
    )
