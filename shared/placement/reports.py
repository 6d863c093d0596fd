"""Whose reports of steps that are done come to each worker, and by which link. Pure."""

from shared.placement.derived import first_worker, links
from shared.placement.facts import ModelFacts
from shared.placement.segments import waits_for_all
from shared.placement.tiles import Placement


def report_parents(placement: Placement, model: ModelFacts, *, training: bool = True) -> dict[str, str]:
    """The next worker on the way of each to the first one, which hears all that workers have to say."""
    pairs = [(link.dialer, link.listener) for link in links(placement, model, training=training)]
    parents: dict[str, str] = {}
    reached = [first_worker(placement)]
    for near in reached:
        for pair in pairs:
            if near in pair and (far := pair[1 - pair.index(near)]) not in reached:
                parents[far] = near
                reached.append(far)
    return parents


def reports_heard(
    placement: Placement, model: ModelFacts, worker: str, *, training: bool = True
) -> dict[str, frozenset[str]]:
    """By peer, the workers whose reports of steps that are done `worker` hears from there.

    Reports go to the first worker, and to whoever begins steps and would not otherwise know how far the others are; they go
    along the tree of `report_parents`.
    """
    parents = report_parents(placement, model, training=training)
    to_hear = {first_worker(placement)}
    for source in placement.sources:
        if not waits_for_all(placement, model, source.worker, training=training):
            to_hear.add(source.worker)
    peers = [child for child, parent in parents.items() if parent == worker]
    peers += [parents[worker]] if worker in parents else []
    return {
        peer: _beyond(parents, worker, peer) for peer in peers if not to_hear.isdisjoint(_beyond(parents, peer, worker))
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
