"""Ways of the reports of finished steps to each worker: the reporting workers, and the links. Pure."""

from collections.abc import Collection, Sequence

from shared.placement.derived import Link


def report_parents(first: str, links: Sequence[Link]) -> dict[str, str]:
    """The next worker on the way of each to the first one, which hears all that workers have to say."""
    parents: dict[str, str] = {}
    reached = [first]
    for near in reached:
        for pair in links:
            if near in pair and (far := pair[1 - pair.index(near)]) not in reached:
                parents[far] = near
                reached.append(far)
    return parents


def reports_heard(parents: dict[str, str], worker: str, to_hear: Collection[str]) -> dict[str, frozenset[str]]:
    """Return by peer the workers whose reports of finished steps `worker` gets from there.

    parents: see `report_parents`; reports go along that tree. to_hear: the receivers: the first worker, and every
    worker that begins steps and would not otherwise know the progress of the others.
    """
    peers = [child for child, parent in parents.items() if parent == worker]
    peers += [parents[worker]] if worker in parents else []
    return {
        peer: _beyond(parents, worker, peer) for peer in peers if not _beyond(parents, peer, worker).isdisjoint(to_hear)
    }


def _beyond(parents: dict[str, str], near: str, far: str) -> frozenset[str]:
    """All workers on the side of `far`, of two that the tree joins."""
    if parents.get(far) == near:
        return _and_below(parents, far)
    return frozenset({*parents, *parents.values()}) - _and_below(parents, near)


def _and_below(parents: dict[str, str], worker: str) -> frozenset[str]:
    found = {worker}
    for child, parent in parents.items():  # in the order in which they were reached
        if parent in found:
            found.add(child)
    return frozenset(found)
