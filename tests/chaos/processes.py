"""The processes of a disturbed run: each may suffer faults, and is started again when it ends."""

import asyncio
import shutil
import signal
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.chaos.faults import Fault, Planned
from tests.support.forked import Forked

TELLING_SECONDS = 10.0


class Side:
    """One of the processes, started again whenever it ends."""

    def __init__(self, target: Any, arguments: list[Any], planned: list[Planned], folder: Path, name: str) -> None:
        self._target, self._arguments, self._planned = target, arguments, planned
        self.name, self._folder, self._fired = name, folder, folder / f"{name}.fired"
        self.starts = 0
        self.process: Forked | None = None
        self.may_start = asyncio.Event()
        """Cleared while the process is to stay dead."""
        self.may_start.set()

    @property
    def fired(self) -> list[tuple[Fault, str]]:
        """The faults that have happened, and at which points."""
        return [(Fault[fault], point) for _, fault, point in self._lines()]

    def _lines(self) -> list[list[str]]:
        return [line.split() for line in self._fired.read_text().splitlines()] if self._fired.exists() else []

    def start(self) -> None:
        self.starts += 1
        left, happened = [], Counter(side for side, *_ in self._lines())
        for step in self._planned:
            if happened[step.side]:
                happened[step.side] -= 1
            else:
                left.append(step)
        self.process = Forked(self._target, *self._arguments, left, self._folder)

    async def ended(self) -> int:
        assert self.process is not None
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_reader(self.process, ended.set)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(self.process)
        return self.process.wait()

    def lose_disk(self) -> None:
        """Die, and have nothing of what was written when it is started again."""
        self.kill()
        shutil.rmtree(self._folder / self.name, ignore_errors=True)

    def stepped_at(self) -> float:
        """Return the time at which it last wrote a step down; 0 before the first."""
        return max((log.stat().st_mtime for log in (self._folder / "steps" / self.name).glob("*.steps")), default=0.0)

    @property
    def logged_bytes(self) -> int:
        """The length of its log."""
        log = self._folder / f"{self.name}.log"
        return log.stat().st_size if log.exists() else 0

    def tell_threads(self) -> None:
        """Have the process write to its log what each of its threads does."""
        if self.process is not None:
            self.process.send_signal(signal.SIGUSR1)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()


async def keep_up(trainer: Side) -> None:
    """Start a trainer again whenever it ends and may be started."""
    while True:
        await trainer.ended()
        await trainer.may_start.wait()
        trainer.start()


async def tell_threads(sides: Sequence[Side]) -> None:
    """Have all write what their threads do, and wait until their logs have grown."""
    before = {side: side.logged_bytes for side in sides}
    for side in sides:
        side.tell_threads()
    with suppress(TimeoutError):
        async with asyncio.timeout(TELLING_SECONDS):
            while any(side.logged_bytes == length for side, length in before.items()):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
