"""The workers without a state: they own no block that changes, so one that has lost all begins again in mid-step. Pure."""

from collections.abc import Mapping

from shared.bounds import AGENT
from shared.placement.derived import first_worker
from shared.placement.facts import ModelFacts
from shared.placement.tiles import Placement


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
