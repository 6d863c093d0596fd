"""Several machines on one machine, each joined with every other by a link of its own that is shaped by itself."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import combinations

from benchmarks.net.namespaces import Namespace, join, join_by_relay, made_namespaces
from benchmarks.net.shaping import LinkEnd


class Mesh:
    """The machines by name, and the ends of the links between them by (sender, receiver)."""

    def __init__(self, machines: Mapping[str, Namespace]) -> None:
        self.machines = machines
        self.ends = {
            (sender, receiver): LinkEnd(machines[sender].name, _device(receiver))
            for sender in machines
            for receiver in machines
            if sender != receiver
        }

    def shape(self, bits_per_second: float, between: tuple[str, str] | None = None) -> None:
        """Limit both directions of one link, or of every link; may be called again at any time, and acts within 0.25 s."""
        for hop, end in self.ends.items():
            if between is None or set(hop) == set(between):
                end.shape(bits_per_second)

    def unshape(self) -> None:
        """Lift all limits."""
        for end in self.ends.values():
            end.unshape()


@contextmanager
def meshed_namespaces(
    name_prefix: str, names: Sequence[str], delays: Mapping[tuple[str, str], float] | None = None
) -> Iterator[Mesh]:
    """Make machines of these names, short ones, and remove them with every process in them when the context ends.

    delays: round trips in seconds of some of the links, named in this order. No link is shaped yet. Each machine has one
    address for all its links. Raises LinkError as `linked_namespaces`.
    """
    addresses = {name: f"10.78.0.{number}" for number, name in enumerate(names, 1)}
    with made_namespaces(name_prefix, addresses, Namespace) as (machines, stack):
        for number, (one, other) in enumerate(combinations(names, 2)):
            if seconds := (delays or {}).get((one, other)):
                cable = f"cable{number}"
                join_by_relay(machines[one], machines[other], cable, seconds, stack)
                machines[one].rename_device(cable, _device(other))
                machines[other].rename_device(cable, _device(one))
            else:
                join(machines[one], _device(other), machines[other], _device(one))
            for here, there in ((one, other), (other, one)):
                machines[here].name_device(_device(there), 32)
                machines[here].attach(_device(there), f"{addresses[there]}/32")
        yield Mesh(machines)


def _device(name: str) -> str:
    return f"to-{name}"
