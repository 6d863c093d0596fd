"""The consequences of a placement for this trainer's worker: computed once, when the placement is judged."""

from collections.abc import Iterable
from typing import NamedTuple

from cloud_trainer.sessions.memory import Uses
from shared.placement import AGENT, Cargo, Crossing, Deployment, Placement, PlacementPlan, Route, held_blocks


class ActivePlacement(NamedTuple):
    """A judged placement, in the terms of the code that runs it, counts and shows it."""

    plan: PlacementPlan
    deployment: Deployment
    """Summary of the placement. Its codecs are those of the first crossing at this worker."""
    uses: Uses
    """Batches that may be in flight here."""

    @property
    def placement(self) -> Placement:
        """Return the placement itself."""
        return self.plan.placement


def deployment_at(worker: str, plan: PlacementPlan) -> Deployment:
    """Summarise a placement in few numbers, as one worker sees it."""
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
    """Return the codec of the first of them; raw if there is none."""
    routes = (Route(one.sender, one.receiver, one.cargo) for one in several)
    return next((placement.codecs.get(route, "raw") for route in routes), "raw")
