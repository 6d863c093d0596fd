"""The exchange of a group's member: the segments of blocks that its schedule has travel together."""

from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

import torch

from edge_agent.group_config import GroupSection
from edge_agent.planner_names import DYNACOMM, FLOW, IBATCH, LAYERWISE, SEQUENTIAL
from edge_agent.planning.schedules import STRATEGIES, ExchangeSchedule, load_layers
from shared.codec import Codec, codec_by_name
from shared.errors import ConfigError
from shared.placement import Exchange

MANY = 2**16
"""Numbers of a tensor in which nothing counts but what each of them takes."""


def exchange_of(group: GroupSection, block_names: Sequence[str]) -> Exchange | None:
    """Return the exchange with which a member begins; None for the flow, in which each block goes by itself.

    A strategy that follows from seconds which nobody has told begins with each block by itself. Raises ConfigError for layers
    that are not the model's blocks, and PlanError for a file of layers that cannot be read.
    """
    count = len(block_names)
    if group.schedule == FLOW:
        return None
    if group.schedule == SEQUENTIAL:
        return Exchange(((0, count),), ((0, count),), barrier=True)
    if group.schedule == LAYERWISE or is_made_again(group):
        each = tuple((block, block + 1) for block in range(count))
        return Exchange(tuple(reversed(each)), each, barrier=True)
    assert group.layers is not None, "without layers it is made again"
    return _planned(group.schedule, group.layers, block_names)


def is_made_again(group: GroupSection) -> bool:
    """Tell whether a member makes its schedule from what it measures, again and again."""
    return group.schedule in (IBATCH, DYNACOMM) and group.layers is None


def exchange_by(schedule: ExchangeSchedule, ends: Sequence[int], blocks: int) -> Exchange:
    """Return the exchange that a schedule with a barrier has of so many blocks.

    ends: the block at which each of its layers begins, and the end of the last. Blocks behind that travel together.
    """
    assert schedule.push_segments is not None, "every strategy but the flow has segments"
    assert schedule.pull_segments is not None, "every strategy but the flow has segments"
    push, pull = (
        tuple((ends[first], ends[stop]) for first, stop in segments)
        for segments in (schedule.push_segments, schedule.pull_segments)
    )
    behind = ((ends[-1], blocks),) if ends[-1] < blocks else ()
    return Exchange(behind + push, pull + behind, barrier=True)


def carried_shares(group: GroupSection) -> tuple[float, float]:
    """Return the bytes of gradients and of weights that a member exchanges, as parts of what they have as they are."""
    push, pull = (_share(codec_by_name(name)) for name in (group.codec, group.weights_codec))
    return push, pull


def _share(codec: Codec) -> float:
    return codec.encoded_bytes((MANY,), torch.float32) / (MANY * torch.float32.itemsize)


def _planned(strategy: str, path: Path, block_names: Sequence[str]) -> Exchange:
    layers = load_layers(path)
    ends = _ends(layers.names, block_names, path)
    return exchange_by(STRATEGIES[strategy](layers), ends, len(block_names))


def _ends(layers: Sequence[str], block_names: Sequence[str], path: Path) -> list[int]:
    """Return the block at which each layer begins, and the end of the last. A layer is a block, or several joined by `+`.

    Raises ConfigError for other layers.
    """
    if len(layers) == len(block_names):
        return list(range(len(layers) + 1))
    if "+".join(layers) == "+".join(block_names):
        return [0, *accumulate(name.count("+") + 1 for name in layers)]
    raise ConfigError(
        f"group.layers: {path} has {len(layers)} layers, and the model {len(block_names)} blocks; a file has a layer for each "
        "block, as edge-agent model lists them, or for several that its name joins by +"
    )
