"""Messages to systemd about this process (sd_notify): ready, alive, its status, stopping. Without systemd nothing happens.

Alive means that the event loop turns: a loop that something blocks sends no beat, and systemd ends the process.
"""

import asyncio
import os
import time

from sdnotify import SystemdNotifier

STATUS_INTERVAL_SECONDS = 1.0
"""No status follows another sooner: steps may take a millisecond."""
BEATS_A_TIMEOUT = 3


def tell_last(sentence: str) -> None:
    """Have the manager show why the process ends, for as long as the service stays down."""
    SystemdNotifier().notify(f"STATUS={sentence}")


class ServiceManager:
    """The manager that has started this process, if any. Used on the event loop."""

    def __init__(self) -> None:
        self._notifier = SystemdNotifier()
        self._told_seconds = -STATUS_INTERVAL_SECONDS
        self._beating: asyncio.Task[None] | None = None

    def ready(self) -> None:
        """Report that the service is ready. From here on it must show that it is alive.

        Not before: a beat arms the manager's watchdog, and importing and building a model may take any time.
        """
        self._notifier.notify("READY=1")
        if timeout_seconds := int(os.environ.get("WATCHDOG_USEC", "0")) / 1e6:
            self._beating = asyncio.create_task(self._beat(timeout_seconds / BEATS_A_TIMEOUT))

    def starting(self, line: str, seconds: float) -> None:
        """Set the line that `systemctl status` shows of a service that is not ready yet, and need not be for so long."""
        self._notifier.notify(f"EXTEND_TIMEOUT_USEC={round(seconds * 1e6)}\nSTATUS={line}")

    def status(self, line: str) -> None:
        """Set the line that `systemctl status` shows; lines that come too fast are dropped."""
        now = time.monotonic()
        if now - self._told_seconds >= STATUS_INTERVAL_SECONDS:
            self._told_seconds = now
            self._notifier.notify(f"STATUS={line}")

    def stopping(self) -> None:
        """The service ends."""
        self._notifier.notify("STOPPING=1")
        if self._beating is not None:
            self._beating.cancel()

    async def _beat(self, interval_seconds: float) -> None:
        while True:
            self._notifier.notify("WATCHDOG=1")
            await asyncio.sleep(interval_seconds)
