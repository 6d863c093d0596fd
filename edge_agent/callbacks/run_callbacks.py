"""The callbacks of one run: made before anything is dialled, and told its events while it trains."""

import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Self

from edge_agent.callback_config import CallbackConfig
from edge_agent.callbacks.callback_thread import Callback, CallbackThread
from edge_agent.callbacks.run_handle import Operated, RunHandle
from edge_agent.training.events import TOLD, Ended
from edge_agent.training_config import TrainingConfig
from shared.concurrency.tasks import gathered
from shared.concurrency.threads import SWITCH_SECONDS
from shared.errors import ConfigError
from shared.events import Events
from shared.factory import load_factory
from shared.foreign import described, foreign_code, place_of

_END_SECONDS = 10.0
"""Longest wait of a run's end for its callbacks."""


class RunCallbacks:
    """The callbacks of one run, on a thread each. Used on the event loop."""

    @classmethod
    def made(cls, training: TrainingConfig) -> Self:
        """Make those that are configured. Blocks. Raises ConfigError for one that is not there, or cannot be made."""
        keys = {"training.callbacks": training.callbacks, "training.trackers": training.trackers}
        return cls([CallbackThread(each.name, _made(key, each)) for key, named in keys.items() for each in named])

    def __init__(self, threads: Sequence[CallbackThread]) -> None:
        self._threads = threads

    def subscribe(self, events: Events) -> None:
        """Tell them the events of the run from now on."""
        for thread in self._threads:
            for kind in TOLD:
                events.subscribe(kind, thread.tell)

    @asynccontextmanager
    async def running(self, operated: Operated, end_seconds: float = _END_SECONDS) -> AsyncIterator[None]:
        """Call them while the body runs, until the run has ended, and wait for that. Without any, do nothing.

        A failure of the body is the end of the run, too.
        """
        if not self._threads:
            yield
            return
        before = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH_SECONDS)  # a step would wait for a callback that computes in Python
        try:
            for thread in self._threads:
                thread.start(RunHandle(thread.name, operated))
            try:
                yield
            except BaseException as failure:
                for thread in self._threads:
                    thread.tell(Ended(None, str(failure) or "stopped"))
                raise
            finally:
                await gathered(*(thread.end(end_seconds) for thread in self._threads))
        finally:
            sys.setswitchinterval(before)


def _made(key: str, config: CallbackConfig) -> Callback:
    factory = load_factory(config.factory, key=key, error=ConfigError)

    def refusal(cause: BaseException) -> BaseException:
        place = f" ({place})" if (place := place_of(cause)) else ""
        return (
            cause
            if isinstance(cause, ConfigError)
            else ConfigError(f"{key}: {config.name!r} cannot be made: {described(cause)}{place}")
        )

    with foreign_code(refusal):
        callback = factory(**config.kwargs)
    if not callable(callback):
        raise ConfigError(
            f"{key}: {config.name!r} makes a {type(callback).__name__}, which cannot be called; it must take an event "
            "and the run"
        )
    return callback  # type: ignore[no-any-return]
