"""What follows from the placement in force for those who count and show: worked out once, when it comes into force."""

from collections.abc import Iterable
from typing import NamedTuple

from cloud_trainer.sessions.memory import Batches
from cloud_trainer.sessions.worker.judging import PlacementJudge
from shared.placement import (
    AGENT,
    Cargo,
    Crossing,
    Deployment,
    Placement,
    Route,
    crossings,
    gradient_crossings,
    held_blocks,
)


class InForce(NamedTuple):
    """A placement in other terms."""

    deployment: Deployment
    """The codecs are those of what crosses first at this worker."""
    trained: Batches
    """What may be in flight in training."""
    evaluated: Batches
    """What may be in flight in an evaluation."""


def in_force(placement: Placement, judge: PlacementJudge) -> InForce:
    """What follows from a placement for the worker of this judge."""
    features = (one for one in crossings(placement) if one.receiver == judge.worker)
    gradients = (one for one in gradient_crossings(placement, judge.model) if one.sender == judge.worker)
    deployment = Deployment(
        version=placement.version,
        edge_blocks=len(held_blocks(placement, AGENT)),
        staleness=placement.staleness,
        codec=_first_codec(placement, features),
        downlink_codec=_first_codec(placement, gradients),
    )
    return InForce(deployment, judge.batches(placement), judge.batches(placement, training=False))


def _first_codec(placement: Placement, several: Iterable[Crossing]) -> str:
    """The codec of the first feature or error gradient; raw where there is none."""
    routes = (Route(one.sender, one.receiver, one.cargo) for one in several if one.cargo is not Cargo.LABEL)
    return next((placement.codecs.get(route, "raw") for route in routes), "raw")
