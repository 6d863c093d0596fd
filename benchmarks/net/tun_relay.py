"""A cable of a given length: two TUN devices, and a process that carries packets between them with a delay.

Stands in for `tc netem`, which many kernels lack. Run as `tun_relay.py EDGE_NAMESPACE CLOUD_NAMESPACE DEVICE SECONDS`;
prints a line once both devices exist. A line of its standard input is the delay from then on. It ends when its standard input
does, so it cannot outlive its parent.
Imports nothing of ours: it starts in a fraction of a second.
"""

import ctypes
import fcntl
import os
import select
import struct
import sys
import time
from collections import deque
from pathlib import Path

_CLONE_NEWNET = 0x40000000
_TUNSETIFF = 0x400454CA
_TUNSETOFFLOAD = 0x400454D0
_IFF_TUN, _IFF_NO_PI, _IFF_VNET_HDR = 0x0001, 0x1000, 0x4000
_CHECKSUM_AND_TSO = 0x1 | 0x2 | 0x4
"""Let the kernel hand over large segments, as a veth pair does: seven times the throughput of 1500-byte packets."""

_LARGEST_READ = 10 + 65536
_READS_IN_A_ROW = 64
_LONGEST_LINE = 65536
"""Packets under way in one direction; what comes beyond it is lost, as in a router."""


def open_tun(namespace: str, device: str) -> int:
    """Create `device` in the network namespace and return its file; this thread stays in that namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    with Path("/run/netns", namespace).open() as handle:
        if libc.setns(handle.fileno(), _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter the network namespace {namespace}")
    tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tun, _TUNSETIFF, struct.pack("16sH22x", device.encode(), _IFF_TUN | _IFF_NO_PI | _IFF_VNET_HDR))
    fcntl.ioctl(tun, _TUNSETOFFLOAD, _CHECKSUM_AND_TSO)
    return tun


def carry(edge: int, cloud: int, delay_seconds: float) -> None:
    """Until standard input ends: what is read from one end is written to the other `delay_seconds` later, in order."""
    lines: dict[int, tuple[int, deque[tuple[float, bytes]]]] = {edge: (cloud, deque()), cloud: (edge, deque())}
    sources = [edge, cloud, 0]
    while True:
        now = time.monotonic()
        for sink, line in lines.values():
            while line and line[0][0] <= now:
                try:
                    os.write(sink, line.popleft()[1])
                except OSError:
                    continue  # the device is down: the packet is lost
        wait = min((line[0][0] - now for _, line in lines.values() if line), default=None)
        for source in select.select(sources, [], [], wait)[0]:  # not epoll, which knows no less than a millisecond
            if source == 0:
                if not (told := os.read(0, _LARGEST_READ)):
                    return
                delay_seconds = float(told.split()[-1])
                continue
            line = lines[source][1]
            due = time.monotonic() + delay_seconds
            try:
                for _ in range(_READS_IN_A_ROW):
                    packet = os.read(source, _LARGEST_READ)
                    if len(line) < _LONGEST_LINE:
                        line.append((due, packet))
            except BlockingIOError:
                continue


def main() -> None:
    edge_namespace, cloud_namespace, device, delay_seconds = sys.argv[1:]
    edge, cloud = open_tun(edge_namespace, device), open_tun(cloud_namespace, device)
    print("ready", flush=True)
    carry(edge, cloud, float(delay_seconds))


if __name__ == "__main__":
    main()
