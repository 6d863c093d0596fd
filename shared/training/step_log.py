"""The log of the steps that one side has applied, with hashes, and the check that no step is missing or applied twice.

A line is written after each update: `applied STEP HASH`, and `back STEP` when a side goes back to a checkpoint. A process that
is killed between an update and its line loses the update, too. The log knows nothing of what is hashed.
"""

import os
import weakref
from collections.abc import Iterable
from pathlib import Path

import xxhash

from shared.errors import StepLogError, StorageError
from shared.files.private_files import make_folder, open_file


class StepLog:
    """The log of one side of one session; it goes on where it ended."""

    def __init__(self, folder: Path, session_id: str, side: str) -> None:
        """Raises StorageError when it cannot be opened."""
        path = folder / f"{session_id}-{side}.steps"
        try:
            make_folder(folder)
            self._handle = open_file(path, os.O_WRONLY | os.O_APPEND)
        except OSError as cause:
            raise StorageError(f"{path} cannot be opened: {cause.strerror}") from cause
        self.close = weakref.finalize(self, os.close, self._handle)
        """Ends the log; happens by itself when nothing refers to it any more."""

    def applied(self, step: int, *parts: memoryview) -> None:
        """A step was applied; parts: the bytes that decided it."""
        digest = xxhash.xxh3_64()
        for part in parts:
            digest.update(part)
        self._write(f"applied {step} {digest.hexdigest()}\n")

    def rolled_back(self, step: int) -> None:
        """The side went back, and does this step next."""
        self._write(f"back {step}\n")

    def _write(self, line: str) -> None:
        try:
            os.write(self._handle, line.encode())  # one call, so that a kill cannot leave half a line
        except OSError as cause:
            raise StorageError(f"the step log cannot be written: {cause.strerror}") from cause


def applied_steps(lines: Iterable[str]) -> list[str]:
    """The hashes of the steps that made the weights of now, from step 0 on.

    Raises StepLogError for a step that is missing, applied twice, or out of order.
    """
    hashes: list[str] = []
    for number, line in enumerate(lines, 1):
        match line.split():
            case ["applied", step, digest] if _is_step(step):
                if int(step) != len(hashes):
                    raise StepLogError(f"line {number}: step {step} was applied where step {len(hashes)} was expected")
                hashes.append(digest)
            case ["back", step] if _is_step(step):
                if int(step) > len(hashes):
                    raise StepLogError(f"line {number}: went back to step {step}, of which {len(hashes)} were applied")
                del hashes[int(step) :]
            case _:
                raise StepLogError(f"line {number}: {line.strip()[:80]!r} is no line of a step log")
    return hashes


def check_steps(log: Path, reference: Path | None = None) -> int:
    """How many steps made the weights, each applied once, and with the same hashes as in an undisturbed run's log.

    Raises StepLogError for any other log, or one that cannot be read.
    """
    hashes = _read(log)
    if reference is not None:
        expected = _read(reference)
        for step, (ours, theirs) in enumerate(zip(hashes, expected, strict=False)):
            if ours != theirs:
                raise StepLogError(f"{log}: step {step} is not what {reference} has")
        if len(hashes) != len(expected):
            raise StepLogError(f"{log} has {len(hashes)} steps; {reference} has {len(expected)}")
    return len(hashes)


def _is_step(text: str) -> bool:
    return text.isdecimal() and len(text) < 20  # Python refuses to read a number of thousands of digits


def _read(path: Path) -> list[str]:
    try:
        return applied_steps(path.read_text().splitlines())
    except (OSError, UnicodeDecodeError) as cause:
        raise StepLogError(f"{path} cannot be read: {cause}") from cause
    except StepLogError as wrong:
        raise StepLogError(f"{path}: {wrong}") from None
