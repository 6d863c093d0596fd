"""A slow device on a fast machine: processes held to a share of the CPU and to chosen cores.

Needs root and the cpu controller of cgroup v1. The memory of a small device is not imitated.
"""

import itertools
import os
import subprocess
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.net.tools import Children, LinkError, kill_all, missing_for, sigterm_unwinds, wait_for

_CONTROLLER = Path("/sys/fs/cgroup/cpu")
_PERIOD_MICROSECONDS = 10_000
"""Short against a training step: with the kernel's 100 ms, a step that fits in the quota would run at full speed."""
_SMALLEST_QUOTA_MICROSECONDS = 1000
"""The kernel takes no less."""
_SPIN = ("setpriv", "--pdeathsig", "KILL", "sh", "-c", "while :; do :; done")
"""For as long as this process is there."""
_serial = itertools.count()


class SlowDevice:
    """A device on which slow processes are started."""

    def __init__(self, group: Path, cores: Collection[int]) -> None:
        self.group = group
        self._cores = cores
        self._children = Children()

    def command(self, args: Sequence[str]) -> list[str]:
        """`args` as a command line that enters the device first, with all that it will start."""
        enter = f'echo $$ > {self.group}/cgroup.procs && exec "$@"'
        pin = ["taskset", "--cpu-list", ",".join(map(str, self._cores))]
        return ["sh", "-c", enter, "sh", *pin, *args]

    def popen(self, args: Sequence[str], **kwargs: Any) -> subprocess.Popen[Any]:
        """`subprocess.Popen` on the device; the process is ended with the device if it still runs then.

        For a slow device at the end of a link: `device.popen(link.edge.command(args))`. Not the other way round: inside
        a network namespace the control groups cannot be seen.
        """
        return self._children.popen(self.command(args), **kwargs)

    def run(self, args: Sequence[str], **kwargs: Any) -> subprocess.CompletedProcess[Any]:
        """`subprocess.run` on the device."""
        return subprocess.run(self.command(args), **kwargs)

    @property
    def throttled_periods(self) -> int:
        """Return the number of periods of 10 ms that have ended with the quota used up."""
        statistics = dict(line.split() for line in (self.group / "cpu.stat").read_text().splitlines())
        return int(statistics["nr_throttled"])

    def create(self, cpu_share: float) -> None:
        self.group.mkdir()
        (self.group / "cpu.cfs_period_us").write_text(str(_PERIOD_MICROSECONDS))
        (self.group / "cpu.cfs_quota_us").write_text(str(round(cpu_share * _PERIOD_MICROSECONDS)))
        self._keep_awake()

    def _keep_awake(self) -> None:
        """Have the cores of a virtual machine never halt: something of the lowest priority runs whenever nothing else does.

        A halted core is given to others, and comes back with cold caches. With a burst in every period, a training took 220 to
        330 ms a step then, from run to run; with this 216 to 226.
        """
        for core in self._cores:
            self._children.popen(["chrt", "--idle", "0", "taskset", "--cpu-list", str(core), *_SPIN])

    def remove(self) -> None:
        """End what runs on it, our children first, then the control group; nothing is done when there is none."""
        self._children.stop()
        if self.group.exists():
            kill_all(self._inhabitants())
            wait_for(lambda: not self._inhabitants(), f"the end of all processes in {self.group}")
            self.group.rmdir()

    def _inhabitants(self) -> list[int]:
        return [int(pid) for pid in (self.group / "cgroup.procs").read_text().split()]


def missing() -> str | None:
    """Return the reason that no device can be slowed down here (to skip a test), or None."""
    if reason := missing_for("taskset", "chrt", "setpriv"):
        return reason
    return (
        None if (_CONTROLLER / "cpu.cfs_quota_us").exists() else f"needs the cgroup v1 cpu controller at {_CONTROLLER}"
    )


@contextmanager
def slowed_device(cpu_share: float, cores: Collection[int] | None = None) -> Iterator[SlowDevice]:
    """A device whose processes together get `cpu_share` of one core's time (1.5: one and a half cores).

    cores: the only cores they may run on; all that this process may use when None.
    Removed with every process on it when the context ends, by exception or SIGTERM too.
    """
    if reason := missing():
        raise LinkError(f"a slow device {reason}")
    if not cpu_share * _PERIOD_MICROSECONDS >= _SMALLEST_QUOTA_MICROSECONDS:
        raise LinkError(f"a slow device cannot have {cpu_share:g} of a core; the kernel allows 0.1 and more")
    allowed = os.sched_getaffinity(0)
    if cores is not None and (not cores or not allowed.issuperset(cores)):
        raise LinkError(f"a slow device cannot run on cores {sorted(cores)}; this process may use {sorted(allowed)}")
    group = _CONTROLLER / f"isthmus-{os.getpid()}-{next(_serial)}"
    device = SlowDevice(group, sorted(allowed if cores is None else cores))
    with sigterm_unwinds() as guard:
        try:
            device.create(cpu_share)
            yield device
        finally:
            guard.hold()
            device.remove()
