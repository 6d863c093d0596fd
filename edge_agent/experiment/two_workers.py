"""Which placements this version trains with: the agent and one trainer, on one cut."""

from shared.errors import ConfigError
from shared.placement import Cargo, Placement, Route, stages, two_workers
from shared.wire.isthmus.v1.trainer_pb2 import Deployment

_RUN = "this version trains with two workers on one cut, the first blocks here and all others on one trainer"


def deployment_of(placement: Placement, codec: str, downlink_codec: str) -> Deployment:
    """The deployment of a placement on two workers.

    codec, downlink_codec: of a direction that the placement names no codec for, because nothing goes there. Raises ConfigError
    for any other placement.
    """
    cut = cut_of(placement)
    if cut is None:
        raise ConfigError(f"placement: {_RUN}; `edge-agent placement` shows what this one would cost")
    edge, trainer = placement.workers
    return Deployment(
        cut=cut,
        staleness=placement.staleness,
        codec=placement.codecs.get(Route(edge, trainer, Cargo.FEATURE), codec),
        downlink_codec=placement.codecs.get(Route(trainer, edge, Cargo.ERROR_GRADIENT), downlink_codec),
    )


def cut_of(placement: Placement) -> int | None:
    """c, where blocks [0, c) are on the first worker and all others on the second; None for every other placement.

    None, too, where all blocks are here and somebody has said that the labels stay with them: the trainer would get them.
    """
    if len(placement.workers) != 2:
        return None
    edge, trainer = placement.workers
    cut = sum(len(tile.blocks) for tile in placement.tiles_of(edge))
    labels_stay = cut == placement.blocks and placement.labels is not None
    if not cut or labels_stay:
        return None
    short = two_workers(edge, trainer, cut, placement.blocks, placement.batch_size)
    same_blocks = all(stages(placement, worker) == stages(short, worker) for worker in placement.workers)
    same_owners = same_blocks and not list(placement.shared_blocks())
    return cut if same_owners and placement.sources == short.sources else None


def note_on(placement: Placement) -> str:
    """What this version does otherwise than the placement says; empty where nothing is."""
    cut = cut_of(placement)
    if cut is None:
        return f"{_RUN}; `edge-agent run` refuses this placement"
    if cut == placement.blocks:
        return "in this version the trainer computes the loss where all blocks are here: outputs and labels go to it"
    return ""
