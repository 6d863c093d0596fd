"""The coordinator's requests to the workers of a session. This device's own part answers them as every trainer does."""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from shared.checkpoint import CheckpointName
from shared.placement import OnDisk, PlacementPlan
from shared.wire.isthmus.v1 import trainer_pb2 as pb

Tickets = Mapping[str, Sequence[pb.Ticket]]
"""Tickets with which the trainers let others dial them, by the listening worker."""
Call = Callable[[], Awaitable[None]]
"""A call that can be repeated without harm."""


class WorkerPosition(NamedTuple):
    """The state from which a worker could continue."""

    is_whole: bool = False
    """True if all the state that training needs is in memory."""
    lineage: int = 0
    placement_version: int = 0
    parts: frozenset[CheckpointName] = frozenset()
    """Checkpoints of which the worker has its own part on disk."""
    replicas: Mapping[CheckpointName, frozenset[int]] = {}
    """Blocks of other parts that it has on disk, by checkpoint."""
    tickets: Sequence[pb.Ticket] = ()

    def on_disk(self, name: CheckpointName) -> OnDisk:
        """Return the worker's part and replicas of a checkpoint."""
        return OnDisk(name in self.parts, self.replicas.get(name, frozenset()))


class Change(NamedTuple):
    """A placement that comes into force at a step boundary."""

    plan: PlacementPlan
    next_step: int
    """First step under it."""


class Transfer(NamedTuple):
    """Blocks that go from one worker to another."""

    weights_only: Mapping[int, bool]
    """True for each block whose optimizer state stays behind, by index."""
    checkpoint: CheckpointName | None = None
    """Checkpoint that they belong to, from disk to disk; None from memory to memory."""


class CheckpointPart(Protocol):
    """A worker's part of a checkpoint."""

    async def copied(self) -> None:
        """Wait until the worker has copied its state. Raises the IsthmusError of its refusal."""

    async def written(self) -> None:
        """Wait until the part is on the worker's disk. Raises UnreachableError or StorageError if it fails."""

    async def give_up(self) -> None:
        """Stop listening for its result."""


class BlockSource(Protocol):
    """A worker that others dial to fetch blocks."""

    async def offered(self, receiver: str, transfer: Transfer) -> pb.Peer:
        """Describe the worker to a receiver that dials it, with a ticket for these blocks."""

    async def download(
        self, block: int, *, weights_only: bool, checkpoint: CheckpointName | None = None
    ) -> bytes | memoryview:
        """Return the state of one block, from memory or from a checkpoint on disk."""


class WorkerCalls(Protocol):
    """One worker of a session. A call raises the IsthmusError with which it ends, and can be repeated without harm."""

    @property
    def name(self) -> str:
        """Return the worker's name in every placement."""

    async def join(self) -> WorkerPosition:
        """Accept the coordinator's term, and tell from which state the worker could continue."""

    async def prepare(self, change: Change) -> None:
        """Make sure that a placement can come into force, once the worker has the blocks that it lacked."""

    async def commit(self, change: Change) -> Sequence[pb.Ticket]:
        """Put a placement into force. Returns the tickets of the workers that dial this one."""

    async def restore(self, name: CheckpointName, plan: PlacementPlan) -> Sequence[pb.Ticket]:
        """Go back to a checkpoint under a placement. Raises NotStoredError if the worker lacks a block of it."""

    def checkpoint(self, name: CheckpointName, facts: Mapping[str, Any], /) -> CheckpointPart:
        """Begin a checkpoint at this step boundary. facts: data that the coordinator stores with its own part."""

    async def take_frozen(self, blocks: Collection[int]) -> None:
        """Make sure that the worker has the device's frozen parameters of blocks. They travel where they differ, once."""

    def give(self, receiver: "WorkerCalls", transfer: Transfer) -> list[Call]:
        """List the calls that bring blocks of this worker to another one."""

    def fetch(self, source: BlockSource, transfer: Transfer) -> list[Call]:
        """List the calls that bring this worker the blocks of one that can be dialled."""

    async def take(self, block: int, state: bytes | memoryview, checkpoint: CheckpointName | None) -> None:
        """Store the state of a block, for the next placement or as a replica of a checkpoint's block."""
