"""The processor time of a whole process, from the kernel."""

import os
import subprocess

from shared.errors import IsthmusError


def processor_seconds(process: subprocess.Popen[str], expected: int = 0) -> float:
    """Wait for the end of a process whose stderr is a pipe, and say what it took of processors.

    Raises IsthmusError when it ended otherwise than with `expected`, a code of `subprocess.Popen.returncode`.
    """
    assert process.stderr is not None
    errors = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != expected:
        raise IsthmusError(f"a process ended with {process.returncode}: {errors.strip()[-2000:]}")
    return usage.ru_utime + usage.ru_stime
