"""Links that are slow, far or broken, and devices that are slow, on one machine."""

from benchmarks.net.measure import Measure
from benchmarks.net.mesh import Mesh, meshed_namespaces, starred_namespaces
from benchmarks.net.namespaces import Link, Namespace, linked_namespaces
from benchmarks.net.relay import Fault, Lane, Relay
from benchmarks.net.shaping import Trace
from benchmarks.net.slow_device import SlowDevice, slowed_device
from benchmarks.net.tools import LinkError

__all__ = [
    "Fault",
    "Lane",
    "Link",
    "LinkError",
    "Measure",
    "Mesh",
    "Namespace",
    "Relay",
    "SlowDevice",
    "Trace",
    "linked_namespaces",
    "meshed_namespaces",
    "slowed_device",
    "starred_namespaces",
]
