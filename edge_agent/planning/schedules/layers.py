"""Layers: the bytes of each layer of a model and its seconds on one member of a group.

A layer without parameters belongs to the one before it, and branches of one depth are one layer.
"""

from dataclasses import dataclass, replace
from pathlib import Path

from edge_agent.planning.profile import ProfileDocument, load_document, parse_document
from shared.errors import PlanError

MOST_MEMBERS = 1024
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
    """Read the layers in the file of a profile. PlanError when it cannot be read, has an error, or has none."""
    return _layers(load_document(path), str(path))


def parse_layers(decoded: object, where: str) -> Layers:
    """Read the layers in a decoded JSON object. `where` begins every error."""
    return _layers(parse_document(decoded, where), where)


def _layers(document: ProfileDocument, where: str) -> Layers:
    if not document.layers or document.message_seconds is None:
        missing = "message_seconds" if document.layers else "layers"
        raise PlanError(
            f"{where}: {missing} is missing; a schedule is made of layers, or of a profile of the device and a link"
        )
    return Layers(
        model=document.model,
        message_seconds=document.message_seconds,
        names=tuple(layer.name for layer in document.layers),
        bytes=tuple(layer.bytes for layer in document.layers),
        pull_seconds=tuple(layer.pull_seconds for layer in document.layers),
        forward_seconds=tuple(layer.forward_seconds for layer in document.layers),
        backward_seconds=tuple(layer.backward_seconds for layer in document.layers),
        push_seconds=tuple(layer.push_seconds for layer in document.layers),
    )
