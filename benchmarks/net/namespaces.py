"""Network namespaces, and the link between two of them: an edge and a cloud on one machine, with nothing else in reach.

Needs root, `ip` and `tc` (and `nft` for loss). Everything is made under a name of its own and goes when the context
ends, by exception or SIGTERM too; what a killed process left is removed by the next. Knows nothing of gRPC or training.
"""

import itertools
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.net import tun_relay
from benchmarks.net.shaping import LinkEnd, Trace, playing
from benchmarks.net.tools import Children, LinkError, kill_all, missing_for, run_tool, sigterm_unwinds, stop, wait_for

_DEVICE = "link0"
_EDGE_ADDRESS, _CLOUD_ADDRESS, _NETWORK = "10.77.0.1", "10.77.0.2", "10.77.0.0/30"
"""The same for every link: a namespace sees its own link only."""
_NAME = re.compile(r"isthmus-.*-(\d+)-\d+-\w+")
_serial = itertools.count()
N = TypeVar("N", bound="Namespace")


class Namespace:
    """A machine: `address` is its own, and what is started through it sees only its links and its loopback."""

    def __init__(self, name: str, address: str) -> None:
        self.name = name
        self.address = address
        self._children = Children()

    def command(self, args: Sequence[str]) -> list[str]:
        """`args` as a command line that runs inside; `SlowDevice.popen` takes it."""
        return ["ip", "netns", "exec", self.name, *args]

    def popen(self, args: Sequence[str], **kwargs: Any) -> subprocess.Popen[Any]:
        """`subprocess.Popen` inside; the process is ended with the link if it still runs then."""
        return self._children.popen(self.command(args), **kwargs)

    def run(self, args: Sequence[str], **kwargs: Any) -> subprocess.CompletedProcess[Any]:
        """`subprocess.run` inside."""
        return subprocess.run(self.command(args), **kwargs)

    def create(self) -> None:
        run_tool("ip", "netns", "add", self.name)
        run_tool("ip", "-n", self.name, "link", "set", "lo", "up")
        # What TCP learnt of the link under an earlier shape must not slow the next connection.
        run_tool(*self.command(["sh", "-c", "echo 1 > /proc/sys/net/ipv4/tcp_no_metrics_save"]))

    def name_device(self, device: str, prefix_bits: int) -> None:
        """Give a device of it its address, and no other."""
        run_tool("ip", "-n", self.name, "link", "set", device, "addrgenmode", "none")
        run_tool("ip", "-n", self.name, "address", "add", f"{self.address}/{prefix_bits}", "dev", device)

    def rename_device(self, device: str, name: str) -> None:
        """Give a device of it another name, before it is used."""
        run_tool("ip", "-n", self.name, "link", "set", device, "name", name)

    def attach(self, device: str, network: str) -> None:
        """Reach a network through a device."""
        run_tool("ip", "-n", self.name, "link", "set", device, "up")
        # The machine's default may be bbr, which misjudges a shaped link; the route goes when the device goes down.
        run_tool("ip", "-n", self.name, "route", "replace", network, "dev", device, "congctl", "cubic")

    def route(self, network: str, gateway: str, device: str) -> None:
        """Reach a network through another machine."""
        via = ("via", gateway, "dev", device, "onlink")
        run_tool("ip", "-n", self.name, "route", "replace", network, *via, "congctl", "cubic")

    def forward(self) -> None:
        """Hand on what others send each other through this machine."""
        run_tool(*self.command(["sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"]))

    def remove(self) -> None:
        """End what runs inside, our children first, then the namespace itself; nothing is done when there is none."""
        self._children.stop()
        if self.name in _existing():
            kill_all(self._inhabitants())
            wait_for(lambda: not self._inhabitants(), f"the end of all processes in namespace {self.name}")
            run_tool("ip", "netns", "delete", self.name)

    def _inhabitants(self) -> list[int]:
        return [int(pid) for pid in run_tool("ip", "netns", "pids", self.name).split()]


class Side(Namespace):
    """One side of a link, which alone it sees."""

    def __init__(self, name: str, address: str) -> None:
        super().__init__(name, address)
        self.end = LinkEnd(name, _DEVICE)

    def configure(self) -> None:
        self.name_device(_DEVICE, 30)
        self.up()

    def up(self) -> None:
        self.attach(_DEVICE, _NETWORK)

    def down(self) -> None:
        run_tool("ip", "-n", self.name, "link", "set", _DEVICE, "down")


class Link:
    """The link between `edge` and `cloud`; the uplink runs from edge to cloud. Bits per second count whole frames."""

    def __init__(self, edge: Side, cloud: Side) -> None:
        self.edge = edge
        self.cloud = cloud

    def shape(self, uplink_bits_per_second: float, downlink_bits_per_second: float) -> None:
        """Limit both directions; may be called again at any time, and acts within 0.25 s."""
        self.edge.end.shape(uplink_bits_per_second)
        self.cloud.end.shape(downlink_bits_per_second)

    def unshape(self) -> None:
        """Lift both limits."""
        self.edge.end.unshape()
        self.cloud.end.unshape()

    @contextmanager
    def replay(self, uplink: Trace, downlink: Trace) -> Iterator[None]:
        """Follow a trace in each direction while the body runs; the last rate reached stays."""
        with playing(uplink, self.edge.end.shape), playing(downlink, self.cloud.end.shape):
            yield

    def lose(self, uplink_fraction: float, downlink_fraction: float) -> None:
        """Lose packets at random; (0, 0) ends it, (1, 1) is a link that has fallen silent without going down."""
        if reason := missing_for("nft"):
            raise LinkError(f"loss {reason}")
        for sender, receiver, fraction in (
            (self.edge, self.cloud, uplink_fraction),
            (self.cloud, self.edge, downlink_fraction),
        ):
            sender.end.limit_units(lossy=fraction > 0)
            receiver.end.lose_arriving(fraction)

    def down(self) -> None:
        """Take both devices down: packets are lost, and a new connection finds no route."""
        self.edge.down()
        self.cloud.down()

    def up(self) -> None:
        """Undo `down`; shape and loss are as they were."""
        self.edge.up()
        self.cloud.up()


def missing() -> str | None:
    """Return the reason that no link can be made here (to skip a test), or None."""
    return missing_for("ip", "tc")


@contextmanager
def linked_namespaces(name_prefix: str, *, delay_seconds: float = 0.0) -> Iterator[Link]:
    """Make a link, not shaped yet, and remove it and every process in it when the context ends.

    delay_seconds: round trip, half in each direction. Without it the link is a veth pair; with it, two TUN devices and
    a process that carries packets between them.
    Raises LinkError when this is not root or a tool is missing.
    """
    make = {"edge": _EDGE_ADDRESS, "cloud": _CLOUD_ADDRESS}
    with made_namespaces(name_prefix, make, Side) as (sides, stack):
        link = Link(sides["edge"], sides["cloud"])
        if delay_seconds > 0:
            join_by_relay(link.edge, link.cloud, _DEVICE, delay_seconds, stack)
        else:
            join(link.edge, _DEVICE, link.cloud, _DEVICE)
        link.edge.configure()
        link.cloud.configure()
        yield link


@contextmanager
def made_namespaces(
    name_prefix: str, addresses: Mapping[str, str], kind: Callable[[str, str], N]
) -> Iterator[tuple[dict[str, N], ExitStack]]:
    """Namespaces with nothing between them, by what `addresses` calls them, and what is unwound before they go.

    Raises LinkError when this is not root or a tool is missing.
    """
    if reason := missing():
        raise LinkError(f"a link between namespaces {reason}; benchmarks.net.Relay shapes a connection without")
    _remove_orphans()
    prefix = f"isthmus-{name_prefix}-{os.getpid()}-{next(_serial)}"
    made = {name: kind(f"{prefix}-{name}", address) for name, address in addresses.items()}
    with sigterm_unwinds() as guard, ExitStack() as stack:
        try:
            for namespace in made.values():
                stack.callback(namespace.remove)
                namespace.create()
            yield made, stack
        finally:
            guard.hold()


def join(one: Namespace, device: str, other: Namespace, other_device: str) -> None:
    """Lay a cable between two namespaces, with these devices at its ends."""
    veth = ("type", "veth", "peer", "name", other_device, "netns", other.name)
    run_tool("ip", "link", "add", "name", device, "netns", one.name, *veth)


class Cable:
    """A cable of a length that may change."""

    def __init__(self, relay: "subprocess.Popen[str]") -> None:
        """relay: the process of `tun_relay`."""
        self._relay = relay

    def delay(self, seconds: float) -> None:
        """Have what is sent from now on take so long there and back."""
        assert self._relay.stdin is not None
        self._relay.stdin.write(f"{seconds / 2}\n")
        self._relay.stdin.flush()


def join_by_relay(one: Namespace, other: Namespace, device: str, delay_seconds: float, stack: ExitStack) -> Cable:
    """Lay a long cable between two namespaces, with devices of this name at both ends. delay_seconds: there and back.

    It is there until the stack is unwound. Raises LinkError.
    """
    args = [sys.executable, tun_relay.__file__, one.name, other.name, device, str(delay_seconds / 2)]
    relay = subprocess.Popen(args, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    stack.callback(stop, relay)
    assert relay.stdout is not None
    assert relay.stderr is not None
    if not relay.stdout.readline():
        raise LinkError(f"the delaying relay did not start: {relay.stderr.read().strip()}")
    return Cable(relay)


def _existing() -> list[str]:
    return [line.split()[0] for line in run_tool("ip", "netns", "list").splitlines()]


def _remove_orphans() -> None:
    """Delete namespaces whose maker was killed; a process still inside keeps its own until it ends."""
    for name in _existing():
        match = _NAME.fullmatch(name)
        if match and not Path("/proc", match[1]).exists():
            with suppress(LinkError):  # another process may be doing the same
                run_tool("ip", "netns", "delete", name)
