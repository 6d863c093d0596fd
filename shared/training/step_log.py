"""The log of the steps that one side has applied, with hashes, and the check that no step is missing or applied twice.

A line is written after each update: `applied STEP HASH`, and `back STEP` when a side goes back to a checkpoint. Of several
such lines in a row the last one counts: another side could not go back to the others. Steps in which a side has no part
are one line: `passed FIRST STOP`. A group of devices writes a line after each update of a slice of a block, with the ranks
whose gradients are in it, joined by commas: `merged STEP BLOCK SLICE RANKS HASH`. A process that is killed between
an update and its line loses the update, too. The log knows nothing of the hashed data.
"""

import os
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import xxhash

from shared.bounds import is_step
from shared.errors import StepLogError, StorageError
from shared.files.private_files import make_folder, open_file


class StepLog:
    """The log of one side of one session, or of a group; it goes on where it ended."""

    def __init__(self, folder: Path, session_id: str, side: str) -> None:
        """Raises StorageError when it cannot be opened."""
        path = folder / f"{session_id}-{side}.steps"
        try:
            make_folder(folder)
            self._handle = open_file(path, os.O_WRONLY | os.O_APPEND)
            self._reached = _reached(path.read_text(errors="replace").splitlines())
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
        self._reached = step + 1

    def merged(self, step: int, of: tuple[int, int], ranks: Sequence[int], *parts: memoryview) -> None:
        """A group has updated a slice in a step, by the gradients of these ranks.

        of: its block, and its number. parts: its bytes after that.
        """
        digest = xxhash.xxh3_64()
        for part in parts:
            digest.update(part)
        self._write(f"merged {step} {of[0]} {of[1]} {','.join(map(str, ranks))} {digest.hexdigest()}\n")
        self._reached = step + 1

    def passed_over(self, first: int, stop: int) -> None:
        """Others have done steps [first, stop), in which this side has no part."""
        self._write(f"passed {first} {stop}\n")
        self._reached = stop

    def rolled_back(self, step: int) -> None:
        """The side went back, and does this step next. It has had no part in steps before this one that it has not done."""
        if step > self._reached:
            if self._reached:
                self._write(f"back {self._reached}\n")
            self.passed_over(self._reached, step)
        self._write(f"back {step}\n")

    def _write(self, line: str) -> None:
        try:
            os.write(self._handle, line.encode())  # one call, so that a kill cannot leave half a line
        except OSError as cause:
            raise StorageError(f"the step log cannot be written: {cause.strerror}") from cause


def _reached(lines: Sequence[str]) -> int:
    """Find the step after the last one that a log says was done or passed over; 0 if it says none."""
    for line in reversed(lines):
        match line.split():
            case ["applied", step, _] | ["merged", step, _, _, _, _] if _is_step(step):
                return int(step) + 1
            case ["passed", _, stop] if _is_step(stop):
                return int(stop)
    return 0


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps that made the weights of now."""

    count: int
    """From step 0 on; in some of them the side may have had no part."""
    hashes: dict[int, str]
    """By step, in order, of those that it has applied."""


def applied_steps(lines: Iterable[str]) -> Steps:
    """The steps that made the weights of now.

    Raises StepLogError for a step that is missing, applied twice, or out of order.
    """
    next_step, hashes = 0, dict[int, str]()
    reached = 0
    """The most steps that were applied before the side went back, however often it did so in a row."""
    for number, line in enumerate(lines, 1):
        match line.split():
            case ["applied", step, digest] if _is_step(step):
                if int(step) != next_step:
                    raise StepLogError(f"line {number}: step {step} was applied where step {next_step} was expected")
                _drop_from(next_step, hashes)
                hashes[next_step] = digest
                next_step = reached = next_step + 1
            case ["passed", first, stop] if _is_step(first) and _is_step(stop) and int(first) < int(stop):
                if int(first) != next_step:
                    raise StepLogError(f"line {number}: step {first} was passed where step {next_step} was expected")
                _drop_from(next_step, hashes)
                next_step = reached = int(stop)
            case ["back", step] if _is_step(step):
                if int(step) > reached:
                    raise StepLogError(f"line {number}: went back to step {step}, of which {reached} were applied")
                next_step = int(step)
            case _:
                raise StepLogError(f"line {number}: {line.strip()[:80]!r} is no line of a step log")
    _drop_from(next_step, hashes)
    return Steps(next_step, hashes)


def merged_ranks(lines: Iterable[str]) -> dict[tuple[int, int, int], tuple[int, ...]]:
    """Read the ranks whose gradients made the weights of now, by step, block and slice, from a group's log.

    Raises StepLogError for a line that no group writes, or an update of the same step and slice before the group went back.
    """
    found: dict[tuple[int, int, int], tuple[int, ...]] = {}
    for number, line in enumerate(lines, 1):
        match line.split():
            case ["merged", step, block, part, ranks, _] if all(map(_is_step, (step, block, part, *ranks.split(",")))):
                if (key := (int(step), int(block), int(part))) in found:
                    raise StepLogError(
                        f"line {number}: slice {part} of block {block} was updated in step {step} before"
                    )
                found[key] = tuple(map(int, ranks.split(",")))
            case ["back", step] if _is_step(step):
                found = {key: ranks for key, ranks in found.items() if key[0] < int(step)}
            case ["passed", *_]:  # before a log was begun
                continue
            case _:
                raise StepLogError(f"line {number}: {line.strip()[:80]!r} is no line of a group's log")
    return found


def _drop_from(step: int, hashes: dict[int, str]) -> None:
    """Forget the steps from this one on, which no weights of now have."""
    while hashes and next(reversed(hashes)) >= step:
        hashes.popitem()


def check_steps(log: Path, reference: Path | None = None) -> int:
    """Count the steps that made the weights, each applied once, and with the same hashes as in an undisturbed run's log.

    Raises StepLogError for any other log, or one that cannot be read.
    """
    found = _read(log)
    if reference is not None:
        expected = _read(reference)
        for step in sorted(found.hashes.keys() | expected.hashes.keys()):
            if step < min(found.count, expected.count) and found.hashes.get(step) != expected.hashes.get(step):
                raise StepLogError(f"{log}: step {step} is not what {reference} has")
        if found.count != expected.count:
            raise StepLogError(f"{log} has {found.count} steps; {reference} has {expected.count}")
    return found.count


def _is_step(text: str) -> bool:
    # Python refuses to read a number of thousands of digits
    return text.isdecimal() and len(text) < 20 and is_step(int(text))


def _read(path: Path) -> Steps:
    try:
        return applied_steps(path.read_text().splitlines())
    except (OSError, UnicodeDecodeError) as cause:
        raise StepLogError(f"{path} cannot be read: {cause}") from cause
    except StepLogError as wrong:
        raise StepLogError(f"{path}: {wrong}") from None
