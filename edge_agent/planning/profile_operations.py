"""The costs of any layout by a profile, as `OperationCosts`: a stage takes the time of its blocks for its samples, where that
was measured, and otherwise the measured time of its run of blocks.

The seconds of runs contain a replay if they were measured with one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import combinations

from edge_agent.planning.layout import Layout
from edge_agent.planning.measurements import FLOAT32_BITS
from edge_agent.planning.operation_costs import Message
from edge_agent.planning.profile import Profile
from edge_agent.planning.rates import Rates
from edge_agent.planning.step_tasks import step_tasks
from edge_agent.planning.tasks import StepTasks
from shared.errors import PlanError
from shared.placement import (
    Backward,
    BlockFacts,
    Cargo,
    Crossing,
    Forward,
    Link,
    ModelFacts,
    Operation,
    Placement,
    Route,
    Tile,
    ValueFacts,
)

FORWARD_SHARE = 1 / 3
"""Share of the forward pass in a stage's seconds, if only their sum was measured."""


def layout_tasks(profile: Profile, layout: Layout, rates: Mapping[Link, Rates]) -> StepTasks:
    """Return the tasks of a step over links of these rates. PlanError if one of them, or of the links, was not measured."""
    if profile.by_samples is not None:
        return placement_tasks(profile, coded(profile, layout), rates)
    return step_tasks(layout.placement(), facts_of(profile), ProfileOperations(profile, layout), rates, replays=False)


def placement_tasks(
    profile: Profile, placement: Placement, rates: Mapping[Link, Rates], factors: Mapping[str, float] | None = None
) -> StepTasks:
    """Return the same of any placement, by a profile that has costs by samples.

    factors: ratios of workers' present times to the measured ones. PlanError for a codec that the profile lacks.
    """
    costs = profile.by_samples
    assert costs is not None
    changed = {name: factor for name, factor in (factors or {}).items() if factor != 1.0}
    known = costs.slowed(changed) if changed else costs
    return step_tasks(placement, facts_of(profile), known, rates, shared=profile.shared_segments)


def measured_rates(profile: Profile) -> dict[Link, Rates]:
    """Return the rates of every link as measured, or those of the path through all workers between."""
    ways = {hop: profile.way(*hop) for hop in combinations(profile.names, 2)}
    return {
        Link(*hop): Rates(way.uplink, way.downlink, way.round_trip_seconds or 0.0)
        for hop, way in ways.items()
        if way is not None and way.uplink is not None and way.downlink is not None
    }


def facts_of(profile: Profile) -> ModelFacts:
    """Return what a profile says of its model."""
    blocks = zip(profile.blocks, profile.fewest_samples, strict=True)
    raw = (*(block.reads_raw for block in profile.blocks), False)
    return ModelFacts(
        tuple(BlockFacts(block.name, min_samples=least) for block, least in blocks),
        values=tuple(ValueFacts(index, (index,), returns=index > 0, raw=is_raw) for index, is_raw in enumerate(raw)),
        features=tuple((index,) for index in range(len(raw))),
        samples_ahead=profile.samples_ahead,
    )


def coded(profile: Profile, layout: Layout) -> Placement:
    """Return the placement of a layout, its workers in the order of the profile, with codecs of its widths.

    PlanError for a width of which the profile has no codec.
    """
    codecs: dict[Route, str] = {}
    for route, bits in layout.widths:
        codec = profile.by_samples and profile.by_samples.codec_of(bits)
        if not codec:
            raise PlanError(
                f"the profile says nothing of a codec of {bits} bits; add it to its codecs, or allow 32 bits"
            )
        codecs[route] = codec
    return replace(layout.placement(), workers=profile.names, codecs=codecs)


@dataclass(frozen=True)
class ProfileOperations:
    """The figures for one layout. Work that depends on bytes counts to each message by half."""

    profile: Profile
    layout: Layout

    def seconds(self, worker: str, operation: Operation) -> float:
        """Return the seconds as `OperationCosts` says. PlanError if they were not measured."""
        match operation:
            case Forward(tile):
                return FORWARD_SHARE * self._stage_seconds(worker, tile)
            case Backward(tile):
                return (1.0 - FORWARD_SHARE) * self._stage_seconds(worker, tile)
        return 0.0

    def message(self, crossing: Crossing, codec: str | None) -> Message:  # noqa: ARG002 - the layout has the widths
        """Return the cost as `OperationCosts` says. PlanError if it was not measured."""
        if crossing.cargo is Cargo.ERROR_GRADIENT:
            size, encoding = _measured(self.profile.gradient_bytes[crossing.index]), 0.0
        elif crossing.cargo is Cargo.FEATURE:
            size, encoding = self._feature(crossing)
        else:
            return Message(0.0)
        sent, received = (
            self.profile.worker(name).message.seconds / 2 + self.profile.worker(name).message.seconds_per_byte * size
            for name in (crossing.sender, crossing.receiver)
        )
        return Message(8 * size, send_seconds=encoding + sent, receive_seconds=received)

    def _feature(self, crossing: Crossing) -> tuple[float, float]:
        """Return the bytes on the link, and the seconds of encoding them."""
        size = _measured(self.profile.feature_bytes[crossing.index])
        bits = self.layout.width(crossing.sender, crossing.receiver)
        if bits == FLOAT32_BITS:
            return size, 0.0
        encode = self.profile.encode
        return size * bits / FLOAT32_BITS, _measured(None if encode is None else encode.at(size))

    def _stage_seconds(self, worker: str, tile: Tile) -> float:
        if tile.rows.count != self.profile.batch_size:
            raise PlanError("the profile says what whole batches take, and not what parts of them do")
        seconds = float(self.profile.worker(worker).seconds_at(self.layout.staleness)[tile.first, tile.stop])
        return _measured(None if seconds != seconds else seconds)


def _measured(number: float | None) -> float:
    if number is None:
        raise PlanError("the profile has something of this layout that was not measured; choose other cuts or bits")
    return number
