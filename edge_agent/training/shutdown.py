"""The stop of a run: at the next step boundary after one request, at once after a second signal."""

import asyncio
import signal
from collections.abc import Callable

from shared.errors import ExitCode, StoppedError


class Shutdown:
    """The stop that signals and operators request. Used on the event loop; `listen` on that of the main thread."""

    def __init__(self, resume_command: str = "edge-agent run --resume") -> None:
        """resume_command: the command with which the run can be resumed."""
        self.resume_command = resume_command
        self.requested = False
        self.leaves = False
        """True if this device, a group's member, is to leave that."""
        self.exit_code = ExitCode.TERMINATED
        self.reason = ""
        """Reason of the stop, as the beginning of a sentence."""
        self._prepare_to_end: Callable[[], float] = _at_once
        self._task: asyncio.Task[object] | None = None
        self._cancelling: asyncio.TimerHandle | None = None

    def listen(self) -> None:
        """Handle SIGTERM and SIGINT."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self.request, ExitCode.TERMINATED)
        loop.add_signal_handler(signal.SIGINT, self.request, ExitCode.INTERRUPTED)

    def cancel_on_request(self, prepare_to_end: Callable[[], float] | None = None) -> None:
        """Cancel the calling task when a stop is requested, or if it was. The task then ends by a CancelledError.

        prepare_to_end: called before, and returns the seconds in which the task has to end by itself. None: it has no time.
        """
        self._task = asyncio.current_task()
        self._prepare_to_end = prepare_to_end or _at_once
        if self.requested:
            self._end()

    def cancel_no_more(self) -> None:
        """Stop cancelling the task: it has ended, or has begun work that must be done in any case."""
        self._task = None
        if self._cancelling is not None:
            self._cancelling.cancel()

    def request(self, exit_code: ExitCode) -> None:
        """Stop at the next boundary. A further signal ends the process at once."""
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)
        self._request(exit_code, "interrupted" if exit_code is ExitCode.INTERRUPTED else "stopped by SIGTERM")

    def drain(self, *, leave: bool = False) -> None:
        """Stop at the next boundary, for an operator. leave: leave the group of this device before."""
        self.leaves |= leave
        self._request(ExitCode.TERMINATED, "drained before its group had let it go," if self.leaves else "drained")

    def note_left(self) -> None:
        """Note that this device has left its group."""
        self.reason = "left its group"

    def error(self, where: str) -> StoppedError:
        """Build the error that ends the run. where: the step at which it stops, and how it can continue."""
        stopped = StoppedError(f"{self.reason} {where}")
        stopped.exit_code = self.exit_code
        return stopped

    def _request(self, exit_code: ExitCode, reason: str) -> None:
        self.requested, self.exit_code, self.reason = True, exit_code, reason
        self._end()

    def _end(self) -> None:
        if self._cancelling is not None:
            self._cancelling.cancel()
        if self._task is not None:
            self._cancelling = asyncio.get_running_loop().call_later(self._prepare_to_end(), self._task.cancel)


def _at_once() -> float:
    return 0.0
