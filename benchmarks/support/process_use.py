"""Use of the processors by a whole process, from the kernel."""

import os
import re
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from shared.errors import IsthmusError


@dataclass(frozen=True)
class ProcessUse:
    """The use of a whole process, or a step's part of it."""

    seconds: float
    """On processors."""
    voluntary: float
    """Number of times that a thread gave its processor up, because it waited: each is a wake-up later."""
    involuntary: float
    """Number of times that the kernel took the processor from a thread that had work."""

    def less(self, other: "ProcessUse", steps: int) -> "ProcessUse":
        """A step's part, where this process did so many steps more than `other`."""
        return ProcessUse(
            (self.seconds - other.seconds) / steps,
            (self.voluntary - other.voluntary) / steps,
            (self.involuntary - other.involuntary) / steps,
        )


def use_of(process: subprocess.Popen[str], expected: int = 0) -> ProcessUse:
    """Wait for the end of a process whose stderr is a pipe, and say what it took, all its threads together.

    Raises IsthmusError when it ended otherwise than with `expected`, a code of `subprocess.Popen.returncode`.
    """
    assert process.stderr is not None
    errors = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != expected:
        raise IsthmusError(f"a process ended with {process.returncode}: {errors.strip()[-2000:]}")
    return ProcessUse(usage.ru_utime + usage.ru_stime, usage.ru_nvcsw, usage.ru_nivcsw)


def use_until_now(pid: int) -> ProcessUse:
    """The use of a process that goes on, all its threads together; switches of those that are there still."""
    told = [(task / "status").read_text() for task in Path(f"/proc/{pid}/task").iterdir()]
    voluntary, involuntary = (
        sum(
            int(number)
            for status in told
            for number in re.findall(rf"^{kind}_ctxt_switches:\s*(\d+)", status, re.MULTILINE)
        )
        for kind in ("voluntary", "nonvoluntary")
    )
    return ProcessUse(time.clock_gettime(_clock_of(pid)), voluntary, involuntary)


def _clock_of(pid: int) -> int:
    """The kernel's clock of the time that a process had on processors; see Linux' include/linux/posix-timers_types.h."""
    return (~pid << 3) | 2
