"""An open session, and what the device asks of the trainer for it: evaluations, blocks up and home, another cut, its end."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import structlog
import torch

from edge_agent.data import EvaluationLoader
from edge_agent.experiment.building import Experiment
from edge_agent.experiment.workers import Workers
from edge_agent.sessions.stored_session import StoredSession
from shared.client.retry import Retry
from shared.client.trainer import TrainerClient
from shared.codec import codec_by_name
from shared.errors import IsthmusError, ProtocolError
from shared.model.chain import Block
from shared.tensor_wire import encode_tensor, slot_codec, to_wire
from shared.training import block_state
from shared.training.losses import narrowed
from shared.training.stage import Stage
from shared.training.step_log import StepLog
from shared.transport.stream.framing import TensorKey, WireTensor, block_key
from shared.wire.isthmus.v1 import trainer_pb2 as pb
from shared.wire.isthmus.v1.tensor_pb2 import Role

_log = structlog.get_logger(__name__)
REMINDER_SECONDS = 15.0
"""Well below the time that a trainer keeps a session without a call before it is attached (server.unattached_seconds)."""
FAREWELL_SECONDS = 5.0
"""How long the end of a session may take. A trainer that does not hear of it frees the session by itself, later."""


class OpenSession:
    """A session that the trainer holds and this agent has; `opening` makes it.

    Its calls wait for a trainer that is away as long as `retry` does; each can be repeated without harm.
    """

    def __init__(
        self,
        stored: StoredSession,
        client: TrainerClient,
        experiment: Experiment,
        workers: Workers,
        retry: Retry,
        step_log: StepLog | None = None,
    ) -> None:
        """stored: what outlives the process. step_log: gets every applied gradient, where there is one."""
        self.stored = stored
        self.client = client
        self.experiment = experiment
        self.workers = workers
        self.retry = retry
        self.step_log = step_log
        self._equal_blocks: set[int] = set()
        """The static blocks, which training leaves as they are, that the trainer is known to have with the same weights."""

    @property
    def id(self) -> str:
        """The id that the trainer has given the session."""
        return self.stored.record.session_id

    @property
    def fence(self) -> pb.Fence:
        """What proves that this agent has the session."""
        return pb.Fence(session_term=self.stored.session_term)

    @property
    def resumable(self) -> bool:
        """Whether both sides have had a checkpoint of it."""
        return self.stored.shared is not None

    @property
    def first_step(self) -> int:
        """The step that training goes on with, as far as this side knows before it is attached."""
        return 0 if self.stored.shared is None else self.stored.shared.step

    async def evaluate(self, test: EvaluationLoader, deployment: pb.Deployment) -> pb.EvaluateResponse:
        """Evaluate `test` with the current weights, as deployed; nothing may be in flight."""
        raw, stage = codec_by_name("raw"), Stage(self.experiment.held, 0, deployment.cut)

        async def tensors() -> AsyncIterator[WireTensor]:
            number, batches = 1, test.iterate()
            while (batch := await self.workers.load.run(next, batches, None)) is not None:
                labels = TensorKey(0, Role.ROLE_LABEL, batch=number)
                yield to_wire(raw.encode(narrowed(batch.labels)), labels, deployment.version)
                features = await self.workers.compute.run(stage.evaluate, (batch.inputs,))
                for slot, feature in enumerate(features):
                    codec = slot_codec(deployment.codec, feature.dtype)
                    encoding = await encode_tensor(feature, codec, self.workers.codec)
                    crossing = TensorKey(0, Role.ROLE_FEATURE, deployment.cut, slot, batch=number)
                    yield to_wire(encoding, crossing, deployment.version)
                number += 1

        return await self.retry.run(lambda: self.client.evaluate(self.id, tensors()))

    async def collect(self, cut: int) -> None:
        """Bring the weights of the cloud's blocks [cut, L) home, so that the user's module is whole."""
        for block in self.experiment.chain.blocks[cut:]:
            tensors = await self.download_block(block, weights_only=True)
            await self.workers.compute.run(block_state.restore, block, None, None, tensors)

    async def download_block(self, block: Block, *, weights_only: bool) -> block_state.BlockTensors:
        """Download the state of one of the cloud's blocks. Raises ProtocolError for bytes that are no state of a block."""
        limit = block_state.max_serialized_bytes(block, self.experiment.recipe.optimizer)
        data = await self.retry.run(
            lambda: self.client.download_block(self.id, block.index, limit, weights_only=weights_only)
        )
        return await self.workers.compute.run(block_state.deserialize, bytes(data))

    async def upload_block(self, block: Block, tensors: block_state.BlockTensors, deployment_version: int) -> None:
        """Bring the state of a block to the trainer."""
        data = await self.workers.compute.run(block_state.serialize, tensors)
        encoded = codec_by_name("raw").encode(torch.frombuffer(bytearray(data), dtype=torch.uint8))
        tensor = to_wire(encoded, block_key(block.index), deployment_version)
        await self.retry.run(lambda: self.client.upload_block(self.id, tensor, self.fence))
        if block_state.is_static(block):
            self._equal_blocks.add(block.index)

    def must_move(self, block: Block) -> bool:
        """Whether a block that is to run at the trainer has to be uploaded: a static block that is there already has not."""
        return block.index not in self._equal_blocks

    async def commit_migration(self, next_step: int, deployment: pb.Deployment) -> None:
        """Move the cut at the trainer. Where the answer is lost, ask again; that changes nothing more.

        Raises UnreachableError when that cannot be found out, RefusedError when the trainer keeps the old deployment.
        """
        await self.retry.run(lambda: self.client.commit_migration(self.id, next_step, deployment, self.fence))

    async def measure_cloud(self, cut: int, repeats: int) -> list[float]:
        """Measure `repeats` steps of the cloud's blocks at `cut`, in seconds. The session cannot train afterwards."""
        return await self.client.measure_stage(self.id, cut, repeats)

    @asynccontextmanager
    async def keep_alive(self) -> AsyncIterator[None]:
        """Remind the trainer of the session while the block runs; without a call for a minute it would free the session."""

        async def remind() -> None:
            while True:
                await asyncio.sleep(REMINDER_SECONDS)
                with suppress(IsthmusError):  # the next call that needs the session says what is wrong
                    await self.client.get_session(self.id)

        reminding = asyncio.create_task(remind())
        try:
            yield
        finally:
            reminding.cancel()

    async def deployment(self) -> pb.Deployment:
        """The deployment that the trainer holds."""
        return (await self.retry.run(lambda: self.client.get_session(self.id))).deployment

    async def max_staleness(self) -> int:
        """The largest K that the trainer allows the session. Raises UnreachableError, RefusedError."""
        return (await self.client.get_session(self.id)).max_staleness

    async def close(self) -> None:
        """End the session at the trainer for good. Tries once."""
        await self.client.close_session(self.id, self.fence, resumable=False)

    async def abandon(self) -> None:
        """End the session after a failure; where both sides have a checkpoint, the trainer keeps its own."""
        await abandon(self.client, self.id, self.fence, resumable=self.resumable)

    async def upload_first(self, digests: list[int], cut: int) -> None:
        """Upload every block of the cloud whose first weights at the trainer, of these digests, are not ours."""
        await self._compare(digests)
        for block in self.experiment.chain.blocks[cut:]:
            await self._upload_differing(block, digests[block.index], 0)

    async def upload_static(self, digests: list[int], cut: int, deployment_version: int) -> None:
        """Upload every static block of the cloud, which no checkpoint holds, whose weights at the trainer are not ours.

        A frozen block of the edge stays here: its weights may be the user's own, and the trainer does not run it.
        """
        await self._compare(digests)
        for block in self.experiment.chain.blocks[cut:]:
            if block_state.is_static(block):
                await self._upload_differing(block, digests[block.index], deployment_version)

    async def _compare(self, digests: list[int]) -> None:
        """Note which static blocks the trainer has with our weights. Raises ProtocolError for digests of another model."""
        blocks = self.experiment.chain.blocks
        if len(digests) != len(blocks):
            raise ProtocolError(f"the trainer sent digests of {len(digests)} blocks; the model has {len(blocks)}")
        self._equal_blocks = {
            block.index
            for block in blocks
            if block_state.is_static(block)
            and await self.workers.compute.run(block_state.digest, block) == digests[block.index]
        }

    async def _upload_differing(self, block: Block, digest: int, deployment_version: int) -> None:
        if await self.workers.compute.run(block_state.digest, block) != digest:
            _log.info("the trainer starts from other weights; uploading ours", block=block.name)
            await self.upload_block(block, block_state.collect(block, None), deployment_version)


async def abandon(client: TrainerClient, session_id: str, fence: pb.Fence, *, resumable: bool = False) -> None:
    """End a session after a failure. An error of this call is dropped, because the first failure is what matters."""
    with suppress(IsthmusError, TimeoutError):
        async with asyncio.timeout(FAREWELL_SECONDS):
            await client.close_session(session_id, fence, resumable=resumable)
