"""Bringing replicas: blocks of a checkpoint from the disk of the worker that has them to the disk of another one."""

from collections.abc import Sequence

from edge_agent.sessions.open_session import OpenSession
from shared.checkpoint import CheckpointName
from shared.codec import row_of_bytes
from shared.placement import AGENT
from shared.runtime.checkpoint_states import load_block
from shared.tensor_wire import to_wire
from shared.training import block_state
from shared.transport.stream.framing import block_key


async def bring_replicas(
    session: OpenSession, name: CheckpointName, sender: str, receiver: str, blocks: Sequence[int]
) -> None:
    """Have a worker keep blocks of a checkpoint on its disk, as another one has them on its own.

    Raises StorageError where they cannot be read or written here, and the IsthmusError that a call ends with.
    """
    if AGENT not in (sender, receiver):
        await session.send_blocks(sender, receiver, dict.fromkeys(blocks, False), name)
        return
    for index in blocks:
        await (_upload(session, name, receiver, index) if sender == AGENT else _download(session, name, sender, index))


async def _upload(session: OpenSession, name: CheckpointName, receiver: str, index: int) -> None:
    store, member = session.stored.store, session.members[receiver]
    assert store is not None, "without a folder there are no checkpoints"
    state = await session.workers.disk.run(load_block, store, name, index)
    tensor = to_wire(row_of_bytes(state), block_key(index), session.placement.version)
    await member.client.upload_block(member.session_id, tensor, session.fence, name)


async def _download(session: OpenSession, name: CheckpointName, sender: str, index: int) -> None:
    store, block = session.stored.store, session.experiment.chain.blocks[index]
    assert store is not None, "without a folder there are no checkpoints"
    state = await session.download(sender, block, checkpoint=name)
    tensors = await session.workers.compute.run(block_state.deserialize, state)
    block_state.check(block, session.experiment.recipe.optimizer, tensors)
    await session.workers.disk.run(store.save_replica, name, index, state)
