"""Brings each event to its readers. Knows no event."""

from collections.abc import Callable
from typing import Any, TypeVar


class Event:
    """Something that has happened. Its types are frozen dataclasses; times are time.monotonic, in seconds."""

    __slots__ = ()


Emit = Callable[[Event], None]
"""A sender of an event, on the event loop. It does not know the readers."""
E = TypeVar("E", bound=Event)
_Readers = dict[type[Event], list[Callable[[Any], object]]]


def ignore(_event: Event) -> None:
    """Drop the event."""


class Events:
    """The readers of events, by type. Used on the event loop."""

    def __init__(self, outer: "Events | None" = None) -> None:
        """outer: its readers are told every event first, so the events of a session are those of its run."""
        self._readers: _Readers = {}
        self._levels: tuple[_Readers, ...] = (*(() if outer is None else outer._levels), self._readers)

    def subscribe(self, kind: type[E], reader: Callable[[E], object]) -> None:
        """Have a reader told every event of exactly this type, after earlier readers. It must be quick, and must not raise."""
        self._readers.setdefault(kind, []).append(reader)

    def emit(self, event: Event) -> None:
        """Tell an event to its readers, before this returns."""
        kind = type(event)
        for readers in self._levels:
            for reader in readers.get(kind, ()):
                reader(event)
