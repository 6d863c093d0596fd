"""Readers of data by their names, as `data.train = { image_folder = "photos/train", size = 32 }` has them. Imports none.

A new one is a function in a file of `edge_agent/data/`, whose first parameter is the path, and a line here.
"""

from typing import NamedTuple


class Reader(NamedTuple):
    """A function that reads a file or folder."""

    factory: str
    """`package.module:function`."""
    keys: tuple[str, ...]
    """Its parameters after the path."""
    needed: tuple[str, ...] = ()
    """Parameters of them without a default."""


READERS = {
    "image_folder": Reader(
        "edge_agent.data.image_folder:image_folder", ("size", "channels", "mean", "deviation", "augment", "classes")
    ),
    "table": Reader("edge_agent.data.table:table", ("label", "columns", "classes", "delimiter"), needed=("label",)),
    "text": Reader(
        "edge_agent.data.text:text", ("column", "label", "length", "vocabulary", "words", "classes", "delimiter")
    ),
    "arrays": Reader("edge_agent.data.arrays:arrays", ("inputs", "labels")),
}
