"""Calls of an agent of a test to its trainers about blocks: to offer them, fetch them, send them and take them."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import torch

from shared.client.trainer import TrainerClient
from shared.codec import codec_by_name
from shared.model.chain import Chain
from shared.placement import Placement
from shared.tensor_wire import to_wire
from shared.training import block_state, state_file
from shared.training.recipe import Recipe
from shared.transport.stream.framing import block_key
from shared.wire.isthmus.v1 import trainer_pb2 as pb


class TrainersBlocks(ABC):
    """The calls about blocks of one session; the owner of the session has these."""

    trainers: Mapping[str, TrainerClient]
    sessions: Mapping[str, str]
    chain: Chain
    recipe: Recipe

    @property
    @abstractmethod
    def placement(self) -> Placement:
        """The placement in force."""

    @property
    @abstractmethod
    def fence(self) -> pb.Fence:
        """The fence that proves that this agent has the session."""

    async def offer(
        self, trainer: str, worker: str, blocks: Sequence[int], checkpoint: tuple[int, int] | None = None
    ) -> str:
        """Have a trainer offer blocks to another one, in memory or of a checkpoint; the ticket for them."""
        request = pb.OfferBlocksRequest(
            session_id=self.sessions[trainer],
            fence=self.fence,
            worker=worker,
            blocks=blocks,
            checkpoint=_named(checkpoint),
        )
        return await self.trainers[trainer].offer_blocks(request)

    async def fetch(
        self,
        trainer: str,
        worker: str,
        ticket: str,
        blocks: Sequence[int],
        *,
        address: str | None = None,
        weights_only: bool = False,
        checkpoint: tuple[int, int] | None = None,
    ) -> None:
        """Have a trainer download blocks from another one. address: where, if not where that one is."""
        peer = pb.Peer(
            worker=worker,
            address=address or self.trainers[worker].address,
            session_id=self.sessions[worker],
            ticket=ticket,
        )
        wanted = [pb.WantedBlock(block=block, weights_only=weights_only) for block in blocks]
        await self.trainers[trainer].fetch_blocks(
            pb.FetchBlocksRequest(
                session_id=self.sessions[trainer],
                fence=self.fence,
                peer=peer,
                blocks=wanted,
                checkpoint=_named(checkpoint),
            )
        )

    async def download(self, trainer: str, block: int) -> block_state.BlockTensors:
        """The state of a block that a trainer holds."""
        most = block_state.max_serialized_bytes(self.chain.blocks[block], self.recipe.optimizer)
        data = await self.trainers[trainer].download_block(self.sessions[trainer], block, most, weights_only=False)
        return block_state.from_file(self.chain.blocks[block], self.recipe.optimizer, data)

    async def upload(self, trainer: str, block: int, state: block_state.BlockTensors) -> int:
        """Bring a block to a trainer; returns its digest there."""
        data = torch.frombuffer(bytearray(state_file.serialize(state)), dtype=torch.uint8)
        tensor = to_wire(codec_by_name("raw").encode(data), block_key(block), self.placement.version)
        return await self.trainers[trainer].upload_block(self.sessions[trainer], tensor, self.fence)


def _named(checkpoint: tuple[int, int] | None) -> pb.CheckpointName | None:
    """checkpoint: its lineage and step."""
    return None if checkpoint is None else pb.CheckpointName(lineage=checkpoint[0], step=checkpoint[1])
