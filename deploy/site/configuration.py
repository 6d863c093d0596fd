"""A hook of mkdocs: writes the configuration reference from the types of both sides into docs/configuration.md.

The page has a line `<!-- keys of EdgeConfig -->` where a side's keys belong.
"""

import re
from collections.abc import Iterator
from typing import Any

from cloud_trainer.config import TrainerConfig
from edge_agent.config import EdgeConfig
from shared.config import Config, Key, Table, tables, toml_value

_ROOTS: dict[str, type[Config]] = {"EdgeConfig": EdgeConfig, "TrainerConfig": TrainerConfig}
_PLACE = re.compile(r"^<!-- keys of (\w+) -->$", re.MULTILINE)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """mkdocs calls this with the text of every page."""
    return _PLACE.sub(lambda place: reference(_ROOTS[place[1]]), markdown)


def reference(cls: type[Config]) -> str:
    """The keys of one side in Markdown: a heading and a table for each section."""
    return "\n".join(line for table in tables(cls) if table.keys for line in _section(table))


def _section(table: Table) -> Iterator[str]:
    heading = f"`[{'.'.join(table.path)}]`" if table.path else "Before all tables"
    yield from (f"### {heading}", "", table.description, "")
    yield from ("| key | default | may be | what it is |", "|---|---|---|---|")
    for key in table.keys:
        cells = (f"`{key.name}`", _default(key), key.allowed, key.description)
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
    yield ""


def _default(key: Key) -> str:
    """Return the default of a key; of a key that is left out then, an example."""
    if key.default is None:
        return f"left out; `{toml_value(key.example)}`, say"
    return f"`{toml_value(key.default)}`"
