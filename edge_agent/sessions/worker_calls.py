"""What the coordinator of a session asks of its workers. This device's own part answers it as every trainer does."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from shared.checkpoint import CheckpointName
from shared.placement import OnDisk, PlacementPlan
from shared.wire.isthmus.v1 import trainer_pb2 as pb

Tickets = Mapping[str, Sequence[pb.Ticket]]
"""What the trainers let others dial them with, by the worker that listens."""
Call = Callable[[], Awaitable[None]]
"""A call that can be made again without harm."""


class Position(NamedTuple):
    """What a worker could go on with."""

    is_whole: bool = False
    """Whether all is in memory that is needed to go on."""
    lineage: int = 0
    placement_version: int = 0
    parts: frozenset[CheckpointName] = frozenset()
    """The checkpoints of which the worker has its own part on disk."""
    replicas: Mapping[CheckpointName, frozenset[int]] = {}
    """The blocks of other parts that it has on disk, by the checkpoint."""
    tickets: Sequence[pb.Ticket] = ()

    def on_disk(self, name: CheckpointName) -> OnDisk:
        """What the worker has of a checkpoint."""
        return OnDisk(name in self.parts, self.replicas.get(name, frozenset()))


class Change(NamedTuple):
    """A placement that comes into force at a step boundary."""

    plan: PlacementPlan
    next_step: int
    """The first step under it."""


class Transfer(NamedTuple):
    """Blocks that go from one worker to another."""

    weights_only: Mapping[int, bool]
    """Of each block, by its index, whether the optimizer's state stays behind."""
    checkpoint: CheckpointName | None = None
    """The checkpoint in which they go, from disk to disk; None from memory to memory."""


class CheckpointPart(Protocol):
    """A worker's part of a checkpoint."""

    async def copied(self) -> None:
        """Wait until the worker has copied its state. Raises the IsthmusError that it refuses with."""

    async def written(self) -> None:
        """Wait until the part is on the worker's disk. Raises UnreachableError or StorageError where it cannot be."""

    async def give_up(self) -> None:
        """Hear no more of it."""


class BlockSource(Protocol):
    """A worker that others dial to fetch blocks."""

    async def offered(self, receiver: str, transfer: Transfer) -> pb.Peer:
        """The worker as the receiver dials it, with a ticket for these blocks."""

    async def download(self, block: int, *, weights_only: bool, checkpoint: CheckpointName | None = None) -> bytes:
        """The state of one block, from memory or from a checkpoint on disk."""


class WorkerCalls(Protocol):
    """One worker of a session. A call raises the IsthmusError that it ends with, and can be repeated without harm."""

    @property
    def name(self) -> str:
        """The worker's name in every placement."""

    async def position(self) -> Position:
        """Take the coordinator's term, and say what the worker could go on with."""

    async def prepare(self, change: Change) -> None:
        """Make sure that a placement can come into force, once the worker has the blocks that it lacked."""

    async def commit(self, change: Change) -> Sequence[pb.Ticket]:
        """Put a placement into force. Returns the tickets of those that dial the worker."""

    async def restore(self, name: CheckpointName, plan: PlacementPlan) -> Sequence[pb.Ticket]:
        """Go back to a checkpoint under a placement. Raises NotStoredError where the worker has not all blocks of it."""

    def checkpoint(self, name: CheckpointName, facts: Mapping[str, Any], /) -> CheckpointPart:
        """Begin a checkpoint at this step boundary. facts: what the coordinator remembers with its own part."""

    def lacks(self, block: int) -> bool:
        """Whether a block that the worker is to get has to travel; a static one may be equal everywhere already."""

    def give(self, receiver: "WorkerCalls", transfer: Transfer) -> list[Call]:
        """The calls that bring blocks of this worker to another one."""

    def fetch(self, source: BlockSource, transfer: Transfer) -> list[Call]:
        """The calls that bring this worker blocks of one that can be dialled."""

    async def take(self, block: int, state: bytes, checkpoint: CheckpointName | None) -> None:
        """Take the state of a block, for the next placement or as a replica of a checkpoint's block."""
