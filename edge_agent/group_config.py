"""The section that makes this device a member of a group, and what a member's configuration cannot have."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveInt

from shared.config import GroupName, OneOf, Section
from shared.registry import codec_names

if TYPE_CHECKING:
    from edge_agent.config import EdgeConfig


class GroupSection(Section):
    name: GroupName | None = Field(default=None, examples=["line"])
    """Name of the group, as the trainer's operator has it in `[[groups]]`. Left out, this device trains by itself."""
    rank: NonNegativeInt = 0
    """Place of this device in the order of sums, which no other member has: 0 to size - 1, or one that joins later."""
    size: PositiveInt | None = Field(default=None, examples=[4])
    """Members of the group at its first step. `data.shard = "rank"` needs it; the trainer refuses a member that expects
    another size."""
    schedule: Literal["sequential", "layerwise", "ibatch", "dynacomm", "flow"] = Field(
        default="flow", examples=["dynacomm"]
    )
    """Strategy by which gradients and weights of blocks travel; `edge-agent plan --strategy` shows it. "flow" sends each block
    as soon as it can. With any other, segments of blocks travel together, and nothing is pulled before all is pushed."""
    layers: Path | None = Field(default=None, examples=["layers.json"])
    """File of layers (isthmus.profile/v3) with the seconds from which "ibatch" and "dynacomm" choose the segments: a layer for
    each block. Left out, this device measures them while it trains, and chooses again as they change."""
    codec: Annotated[str, OneOf(codec_names())] = Field(default="raw", examples=["uniform8"])
    """Codec of this device's gradients on their way to the trainers. What a lossy one loses of a gradient is added to that of
    the next step. "raw" sends them as they are."""
    weights_codec: Annotated[str, OneOf(codec_names())] = Field(default="raw", examples=["uniform8"])
    """Codec of the weights on their way from the trainers, the same for all members. What a lossy one loses of a step goes with
    that of the next one, and all members have the same weights. "raw" sends them as they are."""


def check_group(config: "EdgeConfig") -> None:
    """Refuse a configuration that no member of a group can have, and shards without a group. Raises ValueError."""
    group = config.group
    if group.name is None:
        if group != GroupSection():
            raise ValueError("a key of [group] is set and group.name is not; name the group, or leave it out")
        if config.data.shard is not None:
            raise ValueError(
                "data.shard is set and group.name is not; without a group every sample of a batch is this device's"
            )
        return
    for sentence in _impossible(config):
        raise ValueError(f"{sentence} (group.name is {group.name!r})")


def _impossible(config: "EdgeConfig") -> Iterator[str]:
    if not config.all_trainers:
        yield "trainers is empty; a member of a group has one, which has the group, or several"
    if config.placement.given:
        yield "a placement is given; a member of a group runs all blocks, or those before deployment.cut, so leave it out"
    if config.deployment.cut is not None and len(config.all_trainers) > 1:
        yield f"deployment.cut is given, and {len(config.all_trainers)} trainers are configured; a cut takes one trainer"
    yield from _unplannable(config)
    if len(config.deployment.staleness_schedule.pairs) > 1:
        yield "deployment.staleness follows a schedule; all members of a group have one K, so give one number"
    if config.staleness_correction != "none":
        yield (
            f'deployment.staleness_correction is "{config.staleness_correction}"; a group has the momentum of its '
            "weights, and its members do not, so leave it out"
        )
    if config.training.accumulate_batches > 1:
        yield "training.accumulate_batches is more than 1; a group updates after each batch of its members, so leave it out"
    if config.checkpoints.replicas:
        yield "checkpoints.replicas is set; the trainer alone has the checkpoints of a group, so leave it out"
    if config.checkpoints.keep_finished:
        yield "checkpoints.keep_finished is true; a group that has ended does not go on, so leave it out"
    if config.output.record:
        yield "output.record is true; the steps of one member do not tell the weights of a group, so leave it out"
    if config.data.shard is not None and config.group.size is None:
        yield 'data.shard is "rank" and nothing says into how many parts; set group.size'
    size, rank = config.group.size, config.group.rank
    if config.data.shard is not None and size is not None and rank >= size:
        yield (
            f'group.rank is {rank}, group.size {size}, and data.shard "rank", which divides the data among ranks 0 to '
            f"{size - 1}; a member that joins later has samples of its own, so leave data.shard out"
        )
    if config.data.shard is not None and not config.data.drop_last:
        yield 'data.shard is "rank" and data.drop_last is false; only whole batches are divided, so leave drop_last true'


def _unplannable(config: "EdgeConfig") -> Iterator[str]:
    """Tell what a member cannot begin as planned with."""
    engine, deployment = config.engine, config.deployment
    if engine.profile is None:
        return
    trainers = len(config.all_trainers)
    if trainers > 1:
        yield f"engine.profile is set, and {trainers} trainers are configured; a cut is planned with one, so leave it out"
    if config.group.size is None:
        yield "engine.profile is set, and nothing says how many devices share the trainer; set group.size"
    if deployment.cut is not None:
        yield "engine.profile and deployment.cut are both set, and each says where the member begins; leave one of them out"
    if deployment.first_staleness:
        yield (
            f"engine.profile is set, and deployment.staleness is {deployment.first_staleness}; a group is planned at K = 0, so "
            "leave engine.profile out, and set deployment.cut where you want one"
        )
    left_out = type(engine)()
    for key, value in engine:
        if key in ("profile", "allow_edge_only") or value == getattr(left_out, key):
            continue
        yield f"engine.{key} is set; a member begins as engine.profile plans, and keeps that to its end, so leave it out"
