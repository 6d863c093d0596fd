"""Code that is not ours: a user's model, loss or dataset, which may raise anything at all.

Whatever it raises becomes an error of ours that names the cause. That includes SystemExit and the other exceptions that
would end a process: a peer's model must not be able to end the trainer.
"""

import importlib
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from shared.errors import IsthmusError

_PACKAGES = tuple(str(Path(__file__).parent.parent / name) for name in ("shared", "edge_agent", "cloud_trainer"))
_MAX_CAUSES = 20
"""Maximum number of an exception's causes that are followed; they may form a ring."""


class Interruption(BaseException):
    """Ours: ends foreign code from within, and no `except Exception` of that code stops it."""


def raise_translated(cause: BaseException, error_of: Callable[[BaseException], BaseException]) -> NoReturn:
    """Raise what `error_of` makes of what foreign code has raised; a Ctrl-C on the main thread passes as it is.

    `foreign_code` does the same as a context. A short step would feel one several times a block, and has `except` there.
    """
    if is_ours(cause) or (error := error_of(cause)) is cause:
        raise cause
    raise error from cause


class foreign_code:
    """Run code that may raise anything, and raise what `error_of` makes of it; a Ctrl-C on the main thread passes."""

    __slots__ = ("_error_of",)  # a class, because a generator takes three times as long, several times a block and step

    def __init__(self, error_of: Callable[[BaseException], BaseException]) -> None:
        self._error_of = error_of

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: type[BaseException] | None, cause: BaseException | None, __: object) -> None:
        if cause is not None:
            raise_translated(cause, self._error_of)


def is_ours(cause: BaseException) -> bool:
    """Tell whether an exception that came out of foreign code is this process's own: an interruption, or the user's
    Ctrl-C.

    Python delivers a Ctrl-C to the main thread only, so a KeyboardInterrupt elsewhere was raised by the code itself.
    """
    on_main_thread = threading.current_thread() is threading.main_thread()
    return isinstance(cause, Interruption) or (isinstance(cause, KeyboardInterrupt) and on_main_thread)


def described(cause: BaseException) -> str:
    """An exception in words, on one line: its type and what it says; of an error of ours the sentence alone."""
    told = " ".join(str(cause).split())
    if isinstance(cause, IsthmusError) and told:
        return told
    return f"{type(cause).__name__}: {told}" if told else type(cause).__name__


def root_cause(failure: BaseException) -> BaseException:
    """The exception that began it, however often it was caught and raised as another one."""
    for _ in range(_MAX_CAUSES):
        earlier = failure.__cause__ or (None if failure.__suppress_context__ else failure.__context__)
        if earlier is None:
            break
        failure = earlier
    return failure


def place_of(failure: BaseException) -> str:
    """The file and line of foreign code that raised an exception, without folders: `model.py, line 3`. Empty where none did."""
    ours = ("<", importlib.__file__, *_PACKAGES)
    frames = [frame for frame in traceback.extract_tb(failure.__traceback__) if not frame.filename.startswith(ours)]
    return f"{Path(frames[-1].filename).name}, line {frames[-1].lineno}" if frames else ""
