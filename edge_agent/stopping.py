"""A run that is told to stop: once means at the next step boundary, a second signal at once."""

import asyncio
import signal
from collections.abc import Callable

from shared.errors import ExitCode, StoppedError


class Stop:
    """What signals and operators ask for. `listen` is called on the event loop of the main thread."""

    def __init__(self, resume_command: str = "edge-agent run --resume") -> None:
        """resume_command: what goes on with the run that is stopped."""
        self.resume_command = resume_command
        self.requested = False
        self.exit_code = ExitCode.TERMINATED
        self.reason = ""
        """What happened, for a sentence."""
        self.on_request: Callable[[], object] = lambda: None
        """Called when a stop is asked for."""

    def listen(self) -> None:
        """Take SIGTERM and SIGINT."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self.request, ExitCode.TERMINATED)
        loop.add_signal_handler(signal.SIGINT, self.request, ExitCode.INTERRUPTED)

    def request(self, exit_code: ExitCode) -> None:
        """Stop at the next boundary; a further signal ends the process at once."""
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)
        self._stop(exit_code, "interrupted" if exit_code is ExitCode.INTERRUPTED else "stopped by SIGTERM")

    def error(self, where: str) -> StoppedError:
        """What ends the run. where: how far it had come, and what is kept."""
        stopped = StoppedError(f"{self.reason} {where}")
        stopped.exit_code = self.exit_code
        return stopped

    def drain(self) -> None:
        """Stop at the next boundary by an operator's word."""
        self._stop(ExitCode.TERMINATED, "drained")

    def _stop(self, exit_code: ExitCode, reason: str) -> None:
        self.requested, self.exit_code, self.reason = True, exit_code, reason
        self.on_request()
