"""Layers: the bytes of each layer of a model and its seconds on one member of a group, as data and as a file.

Schema `isthmus.layers/v1`. A layer without parameters belongs to the one before it, and branches of one depth are one layer.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from edge_agent.planning.profile.reader import Reader, shown
from shared.errors import PlanError
from shared.files.json_file import read_json

SCHEMA = "isthmus.layers/v1"
MOST_LAYERS = 4096
MOST_MEMBERS = 1024
MOST_BYTES = 2**40
"""Bytes of all layers at most."""
MOST_FILE_BYTES = 16 * 2**20
LONGEST_SECONDS = 1e6
"""More is no measurement."""

Seconds = tuple[float, ...]
"""Seconds of each layer."""


@dataclass(frozen=True)
class Layers:
    """The layers of a model on one member, first to last, with its link to itself."""

    model: str
    message_seconds: float
    """Seconds that each message costs beside its bytes."""
    names: tuple[str, ...]
    bytes: tuple[int, ...]
    """Bytes of the parameters of each layer; its gradient has as many."""
    pull_seconds: Seconds
    forward_seconds: Seconds
    backward_seconds: Seconds
    push_seconds: Seconds

    def __len__(self) -> int:
        """Return L."""
        return len(self.names)

    def among(self, members: int) -> "Layers":
        """Return the layers of one of so many members.

        They work alike and share the trainer's link, so a transfer takes each of them as many times as long. A message costs
        each of them the same. PlanError for a number of members that is out of range.
        """
        check_members(members)
        return self.carried(members, members)

    def carried(self, push: float, pull: float) -> "Layers":
        """Return the layers where gradients take so many times as long to push, and weights to pull."""
        return replace(
            self,
            pull_seconds=tuple(pull * seconds for seconds in self.pull_seconds),
            push_seconds=tuple(push * seconds for seconds in self.push_seconds),
        )


def check_members(members: int) -> None:
    """Refuse a number of members that is out of range. Raises PlanError."""
    if not 1 <= members <= MOST_MEMBERS:
        raise PlanError(f"the group has {members} members; it must have 1 to {MOST_MEMBERS}")


def load_layers(path: Path) -> Layers:
    """Read the layers in a file. PlanError when it cannot be read or has an error."""
    if path.is_file() and path.stat().st_size > MOST_FILE_BYTES:
        raise PlanError(f"{path}: the file of layers has {path.stat().st_size} bytes; {MOST_FILE_BYTES} is the most")
    return parse_layers(read_json(path, "file of layers", PlanError), str(path))


def parse_layers(decoded: object, where: str) -> Layers:
    """Read the layers in a decoded JSON object. `where` begins every error."""
    if not isinstance(decoded, Mapping):
        raise PlanError(f"{where}: a file of layers is a JSON object, not {shown(decoded)}")
    if decoded.get("schema") != SCHEMA:
        raise PlanError(f'{where}: schema is {shown(decoded.get("schema"))}; this version reads "{SCHEMA}"')
    reader = Reader(decoded, where, "file of layers", SCHEMA)
    values = reader.take("layers")
    if not isinstance(values, list) or not 1 <= len(values) <= MOST_LAYERS:
        counted = f"a list of {len(values)}" if isinstance(values, list) else shown(values)
        raise PlanError(f"{where}: layers is {counted}; it must be a list of 1 to {MOST_LAYERS} layers")
    rows = [_layer(reader, f"layers[{index}]", value) for index, value in enumerate(values)]
    names, sizes, pulls, forwards, backwards, pushes = zip(*rows, strict=True)
    if sum(sizes) > MOST_BYTES:
        raise PlanError(f"{where}: the layers have {sum(sizes)} bytes; {MOST_BYTES} is the most")
    message_seconds = _seconds(reader, "message_seconds", reader.take("message_seconds"))
    return Layers(reader.text("model"), message_seconds, names, sizes, pulls, forwards, backwards, pushes)


_TRANSFERS = ("pull_seconds", "push_seconds")
_KEYS = ("name", "bytes", "pull_seconds", "forward_seconds", "backward_seconds", "push_seconds")


def _layer(reader: Reader, key: str, value: object) -> tuple[str, int, float, float, float, float]:
    if not isinstance(value, Mapping):
        raise reader.refuse(key, value, f"an object with {', '.join(_KEYS)}")
    if missing := [name for name in _KEYS if name not in value]:
        raise PlanError(f"{reader.where}: {key}.{missing[0]} is missing; a layer has {', '.join(_KEYS)}")
    name, size = value["name"], value["bytes"]
    if not isinstance(name, str) or not name:
        raise reader.refuse(f"{key}.name", name, "a string that is not empty")
    if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= MOST_BYTES:
        raise reader.refuse(f"{key}.bytes", size, f"a whole number of 0 to {MOST_BYTES}")
    pull, forward, backward, push = (_seconds(reader, f"{key}.{name}", value[name]) for name in _KEYS[2:])
    for transfer, seconds in zip(_TRANSFERS, (pull, push), strict=True):
        if size == 0 and seconds > 0.0:
            raise reader.refuse(f"{key}.{transfer}", seconds, "0, because the layer has no bytes")
    return name, size, pull, forward, backward, push


def _seconds(reader: Reader, key: str, value: object) -> float:
    seconds = float(reader.number(key, value)) if not _is_huge(value) else math.inf
    if seconds > LONGEST_SECONDS:
        raise reader.refuse(key, value, f"at most {LONGEST_SECONDS:g} seconds")
    return seconds


def _is_huge(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > LONGEST_SECONDS
