"""A placement as a JSON document (schema `isthmus.placement/v1`): read with a sentence for each error, and written.

The document says nothing of the model: the reader gives the number of blocks and the batch size.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shared.bounds import is_worker
from shared.errors import ConfigError
from shared.files.json_file import read_json
from shared.placement.tiles import Cargo, Exchange, Placement, Route, Rows, Source, Tile

SCHEMA = "isthmus.placement/v1"
_BLOCK = re.compile(r"[0-9]{1,9}")
"""Python refuses to read numbers of thousands of digits."""
_KEYS = {"schema", "workers", "tiles", "sources", "labels", "owners", "staleness", "codecs", "exchange"}


def load_placement(path: Path, blocks: int, batch_size: int, staleness: int = 0) -> Placement:
    """The placement in a file; see `parse_placement`. Raises ConfigError when it cannot be read or holds anything wrong."""
    return parse_placement(read_json(path, "placement", ConfigError), str(path), blocks, batch_size, staleness)


def parse_placement(document: object, where: str, blocks: int, batch_size: int, staleness: int = 0) -> Placement:
    """The placement in a decoded document; `where` begins every error. `validity.check` judges the content.

    staleness: K, where the document leaves it out.
    """
    reader = _Reader(where)
    top = reader.mapping(document, "the placement", _KEYS)
    if top.get("schema") != SCHEMA:
        raise ConfigError(f'{where}: schema is {top.get("schema")!r}; this version reads "{SCHEMA}"')
    workers = tuple(reader.worker(name, "a worker") for name in reader.items(top.get("workers"), "workers"))
    whole = [{"worker": workers[0], "samples": [0, batch_size]}] if workers else []
    return Placement(
        version=0,
        blocks=blocks,
        batch_size=batch_size,
        workers=workers,
        tiles=tuple(reader.tile(item, batch_size) for item in reader.items(top.get("tiles"), "tiles")),
        sources=tuple(reader.source(item) for item in reader.items(top.get("sources", whole), "sources")),
        owners=reader.owners(top.get("owners", {})),
        labels=reader.labels(top.get("labels")),
        staleness=reader.number(top.get("staleness", staleness), "staleness"),
        codecs=dict(reader.codec(item) for item in reader.items(top.get("codecs", []), "codecs")),
        exchange=reader.exchange(top.get("exchange")),
    )


def document_of(placement: Placement) -> dict[str, Any]:
    """The document that `parse_placement` reads back to an equal placement of version 0."""
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "workers": list(placement.workers),
        "tiles": [
            {"worker": tile.worker, "blocks": [tile.first, tile.stop], "samples": [tile.rows.begin, tile.rows.end]}
            for tile in placement.tiles
        ],
        "sources": [
            {"worker": source.worker, "samples": [source.rows.begin, source.rows.end]} for source in placement.sources
        ],
        "owners": {str(block): owner for block, owner in placement.owners.items()},
        "staleness": placement.staleness,
        "codecs": [
            {"from": route.sender, "to": route.receiver, "cargo": str(route.cargo), "codec": codec}
            for route, codec in placement.codecs.items()
        ],
    }
    if (exchange := placement.exchange) is not None:
        document["exchange"] = {
            "push": [list(segment) for segment in exchange.push],
            "pull": [list(segment) for segment in exchange.pull],
            "barrier": exchange.barrier,
        }
    return document if placement.labels is None else document | {"labels": sorted(placement.labels)}


class _Reader:
    """A reader of values in a document. A value of a wrong kind is refused by its name."""

    def __init__(self, where: str) -> None:
        self._where = where

    def wrong(self, what: str, value: object, right: str) -> ConfigError:
        """Build an error that names `what`, its value and a right one."""
        return ConfigError(f"{self._where}: {what} is {json.dumps(value, default=str)[:80]}; it must be {right}")

    def mapping(self, value: object, what: str, keys: set[str]) -> Mapping[str, Any]:
        """An object that has none but these keys."""
        if not isinstance(value, Mapping):
            raise self.wrong(what, value, "an object")
        for key in value:
            if key not in keys:
                raise ConfigError(f"{self._where}: {what} has the unknown key {key!r}; it may have {sorted(keys)}")
        return value

    def items(self, value: object, what: str) -> list[Any]:
        """A list."""
        if not isinstance(value, list):
            raise self.wrong(what, value, "a list")
        return value

    def string(self, value: object, what: str) -> str:
        """A name."""
        if not isinstance(value, str) or not value:
            raise self.wrong(what, value, "a name")
        return value

    def worker(self, value: object, what: str) -> str:
        """The name of a worker."""
        if not is_worker(name := self.string(value, what)):
            raise self.wrong(what, value, "1 to 63 letters, digits, - and _")
        return name

    def number(self, value: object, what: str) -> int:
        """An integer of 0 or more."""
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise self.wrong(what, value, "an integer of 0 or more")
        return value

    def bounds(self, value: object, what: str) -> tuple[int, int]:
        """A pair [begin, end]."""
        if not isinstance(value, list) or len(value) != 2:
            raise self.wrong(what, value, "a pair [begin, end]")
        return self.number(value[0], what), self.number(value[1], what)

    def tile(self, value: object, batch_size: int) -> Tile:
        """A tile; without samples it has all of them."""
        entry = self.mapping(value, "a tile", {"worker", "blocks", "samples"})
        first, stop = self.bounds(entry.get("blocks"), "blocks of a tile")
        rows = Rows(*self.bounds(entry.get("samples", [0, batch_size]), "samples of a tile"))
        return Tile(self.string(entry.get("worker"), "worker of a tile"), first, stop, rows)

    def source(self, value: object) -> Source:
        """Read a worker and the raw samples that it holds."""
        entry = self.mapping(value, "a source", {"worker", "samples"})
        rows = Rows(*self.bounds(entry.get("samples"), "samples of a source"))
        return Source(self.string(entry.get("worker"), "worker of a source"), rows)

    def owners(self, value: object) -> dict[int, str]:
        """Owners by block; keys of JSON are strings."""
        if not isinstance(value, Mapping):
            raise self.wrong("owners", value, "an object of blocks and their owners")
        owners = {}
        for block, owner in value.items():
            if not _BLOCK.fullmatch(block):
                raise self.wrong("a block of owners", block, "a number in quotes")
            owners[int(block)] = self.string(owner, f"the owner of block {block}")
        return owners

    def labels(self, value: object) -> frozenset[str] | None:
        """One worker, or a list of them."""
        if value is None:
            return None
        names = value if isinstance(value, list) else [value]
        return frozenset(self.string(name, "labels") for name in names)

    def exchange(self, value: object) -> Exchange | None:
        """Segments of blocks that travel together, and whether there is a barrier."""
        if value is None:
            return None
        entry = self.mapping(value, "exchange", {"push", "pull", "barrier"})
        push, pull = (
            tuple(
                self.bounds(item, f"a segment of exchange.{name}")
                for item in self.items(entry.get(name), f"exchange.{name}")
            )
            for name in ("push", "pull")
        )
        if not isinstance(barrier := entry.get("barrier", False), bool):
            raise self.wrong("exchange.barrier", barrier, "true or false")
        return Exchange(push, pull, barrier)

    def codec(self, value: object) -> tuple[Route, str]:
        """A route and its codec."""
        entry = self.mapping(value, "a codec", {"from", "to", "cargo", "codec"})
        cargo = entry.get("cargo")
        if cargo not in list(Cargo):
            raise self.wrong("cargo of a codec", cargo, f"one of {', '.join(Cargo)}")
        sender, receiver = (self.string(entry.get(end), f"{end} of a codec") for end in ("from", "to"))
        return Route(sender, receiver, Cargo(cargo)), self.string(entry.get("codec"), "codec of a codec")
