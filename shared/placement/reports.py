"""Ways of the reports of finished steps to each worker, and the workers that may be missed on them for a while. Pure.

A worker without a state owns no block that changes. One that has lost all begins again in mid-step.
"""

from collections.abc import Collection, Mapping, Sequence

from shared.bounds import AGENT
from shared.placement.derived import Link, first_worker
from shared.placement.facts import ModelFacts
from shared.placement.tiles import Placement


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


def stateless_workers(placement: Placement, model: ModelFacts, parents: Mapping[str, str]) -> frozenset[str]:
    """Find the workers that have nothing to lose but a copy of what others have.

    parents: see `report_parents`. All samples have to enter at the first worker, which counts the steps of the others. It
    has to hear of such a worker directly, and of nobody else through it.
    """
    first = first_worker(placement)
    if {source.worker for source in placement.sources} != {first}:
        return frozenset()
    owners = {placement.owner(index) for index, block in enumerate(model.blocks) if block.changes}
    passing_on = set(parents.values())
    return frozenset(
        worker
        for worker, parent in parents.items()
        if parent == first and worker not in owners and worker not in passing_on and worker != AGENT
    )


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
