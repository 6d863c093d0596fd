"""What follows from a placement for the worker that this trainer is: worked out once, when the placement is judged."""

from collections.abc import Iterable
from typing import NamedTuple

from cloud_trainer.sessions.memory import Uses
from shared.placement import AGENT, Cargo, Crossing, Deployment, Placement, PlacementPlan, Route, held_blocks


class InForce(NamedTuple):
    """A judged placement, in the terms of those who carry it out, count and show."""

    plan: PlacementPlan
    deployment: Deployment
    """The codecs are those of what crosses first at this worker."""
    uses: Uses
    """What may be in flight here."""

    @property
    def placement(self) -> Placement:
        """The placement itself."""
        return self.plan.placement


class ActivePlacement:
    """What is in force at this trainer, for all that ask more than once."""

    def __init__(self, first: InForce) -> None:
        self.now = first


def deployment_at(worker: str, plan: PlacementPlan) -> Deployment:
    """A placement in few numbers, as one worker sees it."""
    placement, crossings = plan.placement, plan.training.crossings
    return Deployment(
        version=placement.version,
        edge_blocks=len(held_blocks(placement, AGENT)),
        staleness=placement.staleness,
        codec=_first_codec(
            placement, (one for one in crossings if one.cargo is Cargo.FEATURE and one.receiver == worker)
        ),
        downlink_codec=_first_codec(
            placement, (one for one in crossings if one.cargo is Cargo.ERROR_GRADIENT and one.sender == worker)
        ),
    )


def _first_codec(placement: Placement, several: Iterable[Crossing]) -> str:
    """The codec of the first of them; raw where there is none."""
    routes = (Route(one.sender, one.receiver, one.cargo) for one in several)
    return next((placement.codecs.get(route, "raw") for route in routes), "raw")
