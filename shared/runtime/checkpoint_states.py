"""States of a checkpoint's blocks on a worker's disk: from its own part, or from the replicas that it keeps of other parts.

Where it has both, the replica counts: that is the state at the block's owner, and a part may hold a shared block without it.
The features that a worker keeps are the increments of its own part.
"""

import itertools
from collections.abc import Collection
from typing import Any

from shared.checkpoint import CheckpointName, CheckpointStore, Increments
from shared.errors import ProtocolError, StorageError
from shared.training import state_file
from shared.training.block_state import BlockTensors
from shared.training.copied_features import CopiedFeatures, folded
from shared.training.held_state import KEPT, CopiedPart, states_in


class PartFiles:
    """A worker's part of a checkpoint as bytes."""

    def __init__(self, copied: CopiedPart, store: CheckpointStore) -> None:
        """Made where it takes no step's time. store: has the former parts.

        Raises StorageError where their increments are needed and damaged.
        """
        self._features = copied.features
        self._data = state_file.serialize(copied.blocks)
        self.increments = Increments() if copied.features is None else _increments_of(copied.features, store)
        """The increments of the features that are kept."""

    @property
    def bytes(self) -> int:
        """Count the bytes that are to be written."""
        return len(self._data) + len(self.increments.more)

    def save(self, store: CheckpointStore, name: CheckpointName, facts: dict[str, Any]) -> None:
        """Write them; the next part shares their increments. Raises StorageError as `CheckpointStore.save` does."""
        increments = store.save(name, facts, self._data, self.increments)
        if self._features is not None:
            self._features.written(increments)


def _increments_of(features: CopiedFeatures, store: CheckpointStore) -> Increments:
    """Make the next increment of features, or the first one again. Raises StorageError; then the next checkpoint has all."""
    increments, rows = features.increments, features.rows
    if features.is_one_too_many:
        try:
            rows = folded(itertools.chain([rows], map(_increment_in, store.read_increments(increments))))
        except StorageError:
            features.lost()
            raise
        increments = ()
    return Increments(increments, state_file.serialize(rows) if rows else b"")


def load_states(store: CheckpointStore, name: CheckpointName, blocks: Collection[int]) -> dict[int, BlockTensors]:
    """The states of these blocks, and it may be of others. Blocks. Raises StorageError where one is missing or damaged.

    blocks: with `KEPT`, the features that this worker's own part has, too, if it has any.
    """
    needed = set(blocks) - {KEPT}
    replicas = {
        block: _tensors_in(store.load_replica(name, block).data)
        for block in store.replicas().get(name, [])
        if block in blocks
    }
    if replicas.keys() >= needed and (KEPT not in blocks or name not in store.names()):
        return replicas
    states = states_in(store.load(name).data) | replicas
    if KEPT in blocks and (features := folded(map(_increment_in, store.load_increments(name)))):
        states[KEPT] = features
    if missing := sorted(needed - states.keys()):
        raise StorageError(f"checkpoint {name}: blocks {missing} are not in it here")
    return states


def load_block(store: CheckpointStore, name: CheckpointName, block: int) -> bytes:
    """The state of one block as it travels. Blocks. Raises StorageError where it is missing or damaged."""
    return state_file.serialize(load_states(store, name, [block])[block])


def _tensors_in(data: bytes) -> BlockTensors:
    """Read a replica, of which the checksum is right."""
    return state_file.deserialize(data, len(data))


def _increment_in(data: bytes) -> BlockTensors:
    try:
        return state_file.deserialize(data, len(data))
    except ProtocolError as cause:
        raise StorageError(f"an increment of a checkpoint is no safetensors file: {cause}") from cause
