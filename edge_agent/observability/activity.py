"""What a run is doing, in one word, for whoever watches it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum, auto


class Activity(Enum):
    """The names are those of `RunState` in protos/isthmus/v1/control.proto, which says what each means."""

    OPENING = auto()
    TRAINING = auto()
    PAUSED = auto()
    EVALUATING = auto()
    MIGRATING = auto()
    AWAY = auto()
    STOPPING = auto()
    FINISHING = auto()
    ENDED = auto()


class Doing:
    """The activity of now."""

    def __init__(self, on_change: Callable[[], None]) -> None:
        self.now = Activity.OPENING
        self._on_change = on_change

    def begin(self, what: Activity) -> None:
        """Do this from now on."""
        self.now = what
        self._on_change()

    @contextmanager
    def during(self, what: Activity) -> Iterator[None]:
        """Do this while the block runs, and then what was done before."""
        before = self.now
        self.begin(what)
        try:
            yield
        finally:
            self.begin(before)
