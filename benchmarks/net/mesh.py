"""Several machines on one machine, joined by links that are shaped by themselves: each with every other, or all with a hub."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import combinations, pairwise

from benchmarks.net.namespaces import Cable, Namespace, join, join_by_relay, made_namespaces
from benchmarks.net.shaping import LinkEnd

_NETWORK = "10.78.0.0/24"


class Mesh:
    """The machines by name, and the ends of the links between them by (sender, receiver)."""

    def __init__(
        self,
        machines: Mapping[str, Namespace],
        links: Sequence[tuple[str, str]],
        cables: Mapping[tuple[str, str], Cable] | None = None,
    ) -> None:
        """links: the pairs of machines that are joined. cables: those of the links that delay what they carry."""
        self.machines = machines
        self._cables = cables or {}
        self.ends = {
            (sender, receiver): LinkEnd(machines[sender].name, _device(receiver))
            for one, other in links
            for sender, receiver in ((one, other), (other, one))
        }

    def shape(self, bits_per_second: float, between: tuple[str, str] | None = None) -> None:
        """Limit both directions of one link, or of every link; may be called again at any time, and acts within 0.25 s."""
        for hop, end in self.ends.items():
            if between is None or set(hop) == set(between):
                end.shape(bits_per_second)

    def delay(self, seconds: float, between: tuple[str, str]) -> None:
        """Set the round trip of a link that was made with one, named in the same order; may be called again at any time."""
        self._cables[between].delay(seconds)

    def unshape(self) -> None:
        """Lift all limits."""
        for end in self.ends.values():
            end.unshape()


@contextmanager
def meshed_namespaces(
    name_prefix: str,
    names: Sequence[str],
    delays: Mapping[tuple[str, str], float] | None = None,
    *,
    in_a_line: bool = False,
) -> Iterator[Mesh]:
    """Make machines of these names, short ones, and remove them with every process in them when the context ends.

    delays: round trips in seconds of some of the links, named in this order. in_a_line: links each machine to the next alone,
    and those between two others forward what these send each other. No link is shaped yet. Each machine has one address for
    all its links. Raises LinkError as `linked_namespaces`.
    """
    addresses, links = _addresses(names), list(pairwise(names) if in_a_line else combinations(names, 2))
    cables = dict[tuple[str, str], Cable]()
    with made_namespaces(name_prefix, addresses, Namespace) as (machines, stack):
        for number, (one, other) in enumerate(links):
            if seconds := (delays or {}).get((one, other)):
                cable = f"cable{number}"
                cables[one, other] = join_by_relay(machines[one], machines[other], cable, seconds, stack)
                machines[one].rename_device(cable, _device(other))
                machines[other].rename_device(cable, _device(one))
            else:
                join(machines[one], _device(other), machines[other], _device(one))
            for here, there in ((one, other), (other, one)):
                machines[here].name_device(_device(there), 32)
                machines[here].attach(_device(there), f"{addresses[there]}/32")
        if in_a_line:
            for name, machine in machines.items():
                machine.forward()
                for other in names:
                    step = names.index(other) - names.index(name)
                    if abs(step) > 1:
                        next_one = names[names.index(name) + (1 if step > 0 else -1)]
                        machine.route(f"{addresses[other]}/32", addresses[next_one], _device(next_one))
        yield Mesh(machines, links, cables)


@contextmanager
def starred_namespaces(name_prefix: str, hub: str, names: Sequence[str]) -> Iterator[Mesh]:
    """Make a hub and machines that are joined with it alone, and remove them as `meshed_namespaces` does.

    What a machine sends to another crosses the links of both, and nothing of the hub but its kernel. No link is shaped yet.
    """
    addresses, links = _addresses([hub, *names]), [(name, hub) for name in names]
    with made_namespaces(name_prefix, addresses, Namespace) as (machines, _):
        middle = machines[hub]
        # The hub answers for the address of each machine on the links of the others.
        for setting in ("ip_forward", "conf/all/proxy_arp"):
            middle.run(["sh", "-c", f"echo 1 > /proc/sys/net/ipv4/{setting}"], check=True)
        for name in names:
            join(machines[name], _device(hub), middle, _device(name))
            machines[name].name_device(_device(hub), 32)
            machines[name].attach(_device(hub), _NETWORK)
            middle.name_device(_device(name), 32)
            middle.attach(_device(name), f"{addresses[name]}/32")
        yield Mesh(machines, links)


def _addresses(names: Sequence[str]) -> dict[str, str]:
    return {name: f"10.78.0.{number}" for number, name in enumerate(names, 1)}


def _device(name: str) -> str:
    return f"to-{name}"
