"""A slow device gets its share of the CPU and no more, on its cores and no others."""

import json
import os
import sys
import threading
from pathlib import Path

import pytest

from benchmarks.net import LinkError, linked_namespaces, slowed_device
from benchmarks.net.namespaces import missing as missing_link
from benchmarks.net.slow_device import missing
from benchmarks.net.tools import wait_for

pytestmark = [pytest.mark.root, pytest.mark.skipif(missing() is not None, reason=f"a slow device {missing()}")]

BUSY = """
import json, os, time
begin, used = time.monotonic(), time.process_time()
while time.monotonic() - begin < 0.5: pass
share = (time.process_time() - used) / (time.monotonic() - begin)
print(json.dumps([share, sorted(os.sched_getaffinity(0))]))
"""


@pytest.mark.parametrize("cpu_share", [0.1, 0.5])
def test_a_busy_process_gets_the_share_and_the_core(cpu_share):
    core = max(os.sched_getaffinity(0))
    with slowed_device(cpu_share, [core]) as device:
        share, cores = json.loads(device.run([sys.executable, "-c", BUSY], capture_output=True, check=True).stdout)
        assert device.throttled_periods > 0
    assert share < 1.3 * cpu_share
    assert cores == [core]


def spinning():
    """The cores that a child of ours of the lowest priority keeps awake."""
    children = Path(f"/proc/{os.getpid()}/task/{threading.get_native_id()}/children").read_text().split()
    idle = [pid for pid in map(int, children) if os.sched_getscheduler(pid) == os.SCHED_IDLE]
    return sorted(core for pid in idle for core in os.sched_getaffinity(pid))


def test_its_cores_are_kept_awake_for_as_long_as_it_is_there():
    core = max(os.sched_getaffinity(0))
    with slowed_device(0.5, [core]):
        wait_for(lambda: spinning() == [core], "the core that is kept awake")
    assert not spinning()


@pytest.mark.skipif(missing_link() is not None, reason=f"a shaped link {missing_link()}")
def test_a_slow_device_may_sit_at_the_end_of_a_link():
    program = "import socket, sys; print(socket.create_server((sys.argv[1], 0)).getsockname()[0])"
    with linked_namespaces("test") as link, slowed_device(0.5) as device:
        args = link.edge.command([sys.executable, "-c", program, link.edge.address])
        assert device.run(args, capture_output=True, check=True, text=True).stdout.strip() == link.edge.address


def test_nothing_is_left_behind_after_an_exception():
    started = []

    def fail() -> None:
        with slowed_device(0.5) as device:
            started.append((device, device.popen(["sleep", "1000"])))
            device.run(["sh", "-c", "trap '' TERM HUP; setsid sleep 1000 & exit"], check=True)
            assert device.group.exists()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    [(device, child)] = started
    assert child.returncode is not None
    assert not device.group.exists()


@pytest.mark.parametrize(("cpu_share", "cores"), [(0.05, None), (float("nan"), None), (0.5, []), (0.5, [4096])])
def test_a_device_that_cannot_be_is_refused(cpu_share, cores):
    with pytest.raises(LinkError, match="a slow device cannot"), slowed_device(cpu_share, cores):
        pass
