"""Plain TCP measured over a link, between its two namespaces."""

import subprocess
import sys
from typing import Protocol

from benchmarks.net import probe
from benchmarks.net.namespaces import Namespace
from benchmarks.net.tools import LinkError


class Ends(Protocol):
    """Two machines that reach each other, as a `Link` has them."""

    @property
    def edge(self) -> Namespace:
        """Return the one that asks."""

    @property
    def cloud(self) -> Namespace:
        """Return the other one."""


class Measure:
    """Runs `probe` in the cloud, and beside it in the edge for each question. Rates are of payload."""

    def __init__(self, link: Ends) -> None:
        self._link = link
        self._server = link.cloud.popen(
            [sys.executable, probe.__file__, "serve", link.cloud.address], stdout=subprocess.PIPE, text=True
        )
        assert self._server.stdout is not None
        if not self._server.stdout.readline():
            raise LinkError(f"the measuring server did not start in {link.cloud.name}")

    def uplink(self, seconds: float) -> float:
        """Bits per second from edge to cloud, over the later two thirds of `seconds`."""
        return self.wait(self.start("uplink", seconds))

    def downlink(self, seconds: float) -> float:
        """Bits per second from cloud to edge."""
        return self.wait(self.start("downlink", seconds))

    def round_trip(self) -> float:
        """Seconds for one byte there and one back."""
        return self.wait(self.start("message", 1, 15, 0.01))

    def message(self, size_bytes: int) -> float:
        """Seconds for a message up and one byte back, each sent after the link was idle for 0.2 s."""
        return self.wait(self.start("message", size_bytes, 5, 0.2))

    def start(self, what: str, *numbers: float) -> subprocess.Popen[str]:
        """Begin a measurement, to do something meanwhile; `wait` has its result."""
        args = [sys.executable, probe.__file__, what, self._link.cloud.address, *map(str, numbers)]
        return self._link.edge.popen(args, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    @staticmethod
    def wait(started: subprocess.Popen[str]) -> float:
        output, errors = started.communicate()
        if started.returncode != 0:
            raise LinkError(f"the measurement failed: {errors.strip().splitlines()[-1]}")
        return float(output)
