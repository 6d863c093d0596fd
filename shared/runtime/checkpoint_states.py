"""States of a checkpoint's blocks on a worker's disk: from its own part, or from the replicas that it keeps of other parts.

Where it has both, the replica counts: that is the state at the block's owner, and a part may hold a shared block without it.
"""

from collections.abc import Collection

from shared.checkpoint import CheckpointName, CheckpointStore
from shared.errors import StorageError
from shared.training import state_file
from shared.training.block_state import BlockTensors
from shared.training.held_state import KEPT, states_in


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
    if missing := sorted(needed - states.keys()):
        raise StorageError(f"checkpoint {name}: blocks {missing} are not in it here")
    return states


def load_block(store: CheckpointStore, name: CheckpointName, block: int) -> bytes:
    """The state of one block as it travels. Blocks. Raises StorageError where it is missing or damaged."""
    return state_file.serialize(load_states(store, name, [block])[block])


def _tensors_in(data: bytes) -> BlockTensors:
    """Read a replica, of which the checksum is right."""
    return state_file.deserialize(data, len(data))
