"""Standard error as a part of the log: lines that libraries write there become events.

gRPC, torch and the interpreter write to file descriptor 2, past every logger, so it is a pipe here, which a thread
reads. The log itself goes on to where standard error was. gRPC may write with its locks held while the reader needs
Python's interpreter, so writing never waits: lines beyond a full pipe are dropped. Lines written at the moment of a
crash are lost. Python's fault handler then writes the place of the crash to the log's place.
"""

import faulthandler
import fcntl
import os
import re
import select
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO

import structlog

_log = structlog.get_logger(__name__)
_PIPE_BYTES = 1 << 20
_TOGETHER_SECONDS = 0.05
"""Longest pause within one event: lines that follow each other sooner belong together, up to the next that begins as
gRPC's entries do."""
_MOST_TOGETHER = 1 << 18
"""Characters that are kept until a pause comes."""
_LONGEST_CHARACTERS = 4000
_BURST, _PER_SECOND = 100.0, 1.0
"""Events that may come at once and in the long run: gRPC's lines about a stranger must not fill the disk."""
_END = "\x00 the end of what is read \x00"
_ENTRY = re.compile(r"^([IWEF])\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ ([\w./-]+:\d+)\] ?", re.ASCII | re.MULTILINE)
"""The beginning of gRPC's entries."""
_LEVELS = {"I": "debug", "W": "warning", "E": "error", "F": "critical"}


class RawLines:
    """Standard error while it is read. stream: where it went before, and where the log belongs."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        """clock: seconds, monotonic."""
        self.stream = stream
        self.hear: Callable[[str], bool] = lambda _entry: False
        """Told of each entry of gRPC's, on the reading thread; returns whether it is dealt with, and no event."""
        self._clock = clock
        self._room, self._counted_at = _BURST, clock()
        self._left_out = 0

    def take(self, text: str) -> None:
        """Make events of text that was written together."""
        begins = [found.start() for found in _ENTRY.finditer(text)]
        for begin, end in zip([0, *begins], [*begins, len(text)], strict=True):
            if entry := text[begin:end].strip():
                self._take_entry(entry)

    def _take_entry(self, entry: str) -> None:
        found = _ENTRY.match(entry)
        if found is None:
            self._say("info", entry, {})
        elif not self.hear(entry):
            self._say(_LEVELS[found[1]], entry[found.end() :], {"source": found[2]})

    def _say(self, level: str, event: str, fields: dict[str, object]) -> None:
        now = self._clock()
        self._room = min(_BURST, self._room + (now - self._counted_at) * _PER_SECOND)
        self._counted_at = now
        if self._room < 1:
            self._left_out += 1
            return
        self._room -= 1
        if self._left_out:
            fields, self._left_out = {**fields, "left_out_before": self._left_out}, 0
        getattr(_log, level)(event[:_LONGEST_CHARACTERS], **fields)


@contextmanager
def raw_lines() -> Iterator[RawLines]:
    """Read standard error of this process, and of children that it starts meanwhile, until the block ends.

    Called before there is a log, which is then to go to the stream of this.
    """
    sys.stderr.flush()
    place = os.dup(2)
    # Never closed: later lines go there, too.
    stream = open(place, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    reader, writer = os.pipe()
    with suppress(OSError, AttributeError):  # one user's pipes have a limit, and only Linux can
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    os.set_blocking(writer, False)
    os.dup2(writer, 2)
    os.close(writer)
    lines = RawLines(stream)
    thread = threading.Thread(target=_read, args=(reader, lines), name="standard-error", daemon=True)
    thread.start()
    faulthandler.enable(place)
    hooks = threading.excepthook, sys.unraisablehook
    threading.excepthook, sys.unraisablehook = _hear_thread, _hear_finalizer
    try:
        yield lines
    finally:
        threading.excepthook, sys.unraisablehook = hooks
        with suppress(OSError):
            sys.stderr.flush()
            select.select([], [2], [], 1.0)
            os.write(2, f"\n{_END}\n".encode())
        faulthandler.disable()
        os.dup2(place, 2)
        thread.join(timeout=2.0)


def _read(reader: int, lines: RawLines) -> None:
    text = ""
    while _END not in text:
        if len(text) < _MOST_TOGETHER and select.select([reader], [], [], _TOGETHER_SECONDS if text else None)[0]:
            text += os.read(reader, 1 << 16).decode(errors="backslashreplace")
        else:
            lines.take(text)
            text = ""
    lines.take(text.partition(_END)[0])
    os.close(reader)


def _hear_thread(told: threading.ExceptHookArgs) -> None:
    name = "" if told.thread is None else told.thread.name
    failure = told.exc_value or told.exc_type()
    _log.critical("a thread failed", thread=name, exc_info=(told.exc_type, failure, told.exc_traceback))


def _hear_finalizer(told: Any) -> None:
    failure = told.exc_value or told.exc_type()
    what = told.err_msg or "a finalizer failed"
    _log.critical(what, of=repr(told.object)[:200], exc_info=(told.exc_type, failure, told.exc_traceback))
