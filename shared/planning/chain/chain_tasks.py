"""A partition of a chain as a placement, and its step as tasks: what the cost model and the simulator of any placement take."""

from dataclasses import dataclass
from itertools import pairwise

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
    Rows,
    Source,
    Tile,
)
from shared.planning.chain.costs import Partition
from shared.planning.measurements import FLOAT32_BITS
from shared.planning.operation_costs import Message
from shared.planning.profile import Profile
from shared.planning.rates import Rates
from shared.planning.tasks import StepTasks, step_tasks

FORWARD_SHARE = 1 / 3
"""What the forward takes of a stage's seconds, where only all of them together were measured."""


def chain_placement(chain: Profile, partition: Partition, staleness: int) -> Placement:
    """The placement of a partition; its workers are the stages."""
    whole = Rows(0, chain.batch_size)
    workers = chain.names
    runs = pairwise((0, *partition.cuts, len(chain)))
    return Placement(
        version=0,
        blocks=len(chain),
        batch_size=chain.batch_size,
        workers=workers,
        tiles=tuple(Tile(worker, first, stop, whole) for worker, (first, stop) in zip(workers, runs, strict=True)),
        sources=(Source(workers[0], whole),),
        staleness=staleness,
    )


def chain_tasks(chain: Profile, partition: Partition, staleness: int) -> StepTasks:
    """The tasks of a step. PlanError where something of it was not measured."""
    placement = chain_placement(chain, partition, staleness)
    workers = placement.workers
    rates = {Link(*hop): chain.rates(*hop) for hop in pairwise(workers)}
    if len(workers) > 2:
        # Labels go straight from the first to the last stage. They weigh next to nothing, and travel as far as the features.
        travel_seconds = sum(link.round_trip_seconds for link in rates.values())
        rates[Link(workers[0], workers[-1])] = Rates(1.0, 1.0, travel_seconds)
    model = ModelFacts(tuple(BlockFacts(block.name) for block in chain.blocks))
    return step_tasks(placement, model, _ChainOperations(chain, partition), rates, replays=False)


@dataclass(frozen=True)
class _ChainOperations:
    """The chain's figures as `OperationCosts`; a replay is in the seconds of a stage where it was measured with one."""

    chain: Profile
    partition: Partition

    def seconds(self, worker: str, operation: Operation) -> float:
        match operation:
            case Forward(tile):
                return FORWARD_SHARE * self._stage_seconds(worker, tile)
            case Backward(tile):
                return (1.0 - FORWARD_SHARE) * self._stage_seconds(worker, tile)
        return 0.0

    def message(self, crossing: Crossing, codec: str | None) -> Message:  # noqa: ARG002 - the partition has the widths
        if crossing.cargo is Cargo.ERROR_GRADIENT:
            return Message(8 * _measured(self.chain.gradient_bytes[crossing.index]))
        if crossing.cargo is not Cargo.FEATURE:
            return Message(0.0)
        size = _measured(self.chain.feature_bytes[crossing.index])
        bits = self.partition.bits[self.partition.cuts.index(crossing.index)]
        if bits == FLOAT32_BITS:
            return Message(8 * size)
        encode = self.chain.encode
        seconds = _measured(None if encode is None else encode.seconds + encode.seconds_per_byte * size)
        return Message(8 * size * bits / FLOAT32_BITS, send_seconds=seconds)

    def _stage_seconds(self, worker: str, tile: Tile) -> float:
        seconds = float(self.chain.worker(worker).replayed[tile.first, tile.stop])
        return _measured(None if seconds != seconds else seconds)


def _measured(number: float | None) -> float:
    if number is None:
        raise PlanError("the chain has something of this partition that was not measured; choose other cuts or bits")
    return number
