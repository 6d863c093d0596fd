"""A session with the trainer: opened with equal weights on both sides, evaluated through the cut, brought home at the end."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import structlog
import torch

from edge_agent.data import EvaluationLoader
from edge_agent.experiment.building import Experiment
from edge_agent.training.connection import Connection
from edge_agent.training.workers import Workers
from shared.client.retry import Retry
from shared.client.trainer import TrainerClient
from shared.codec import codec_by_name
from shared.errors import ConfigError, IsthmusError, ProtocolError
from shared.model.chain import Block
from shared.tensor_wire import encoded, to_wire, wire_dtype
from shared.training import block_state
from shared.training.losses import narrowed
from shared.transport.stream.framing import WireTensor
from shared.version import PROTOCOL_VERSION
from shared.wire.isthmus.v1 import trainer_pb2 as pb
from shared.wire.isthmus.v1.tensor_pb2 import Role, TensorHeader

_log = structlog.get_logger(__name__)
REMINDER_SECONDS = 15.0
"""Well below what a trainer keeps a session for that was never attached (server.unattached_seconds)."""
_FAREWELL_SECONDS = 5.0
"""A trainer that does not hear of our end frees the session by itself, later."""


class EdgeSession:
    """An open session; `id` names it at the trainer. Its calls wait for a trainer that is away, as long as `endurance` does;
    each can be repeated without harm."""

    def __init__(
        self,
        session_id: str,
        client: TrainerClient,
        experiment: Experiment,
        workers: Workers,
        retry: Retry,
        fence: Callable[[], pb.Fence] = pb.Fence,
    ) -> None:
        """fence: proves that this agent has the session; asked at every call."""
        self.id = session_id
        self.fence = fence
        self._retry = retry
        self._client = client
        self._experiment = experiment
        self._workers = workers
        self._equal_blocks: set[int] = set()
        """Blocks that training leaves as they are and that the trainer is known to have as they are here."""

    @classmethod
    async def open(cls, client: TrainerClient, experiment: Experiment, workers: Workers, retry: Retry) -> "EdgeSession":
        """Open a session and upload the cloud's blocks wherever its first weights are not ours.

        Raises IsthmusError when that cannot be done; the trainer then holds no session of ours.
        """
        config, chain, example = experiment.config, experiment.chain, experiment.example
        request = pb.OpenSessionRequest(
            protocol_version=PROTOCOL_VERSION,
            model=pb.Model(factory=config.model.factory, kwargs_json=json.dumps(config.model.kwargs)),
            example=TensorHeader(shape=example.shape, dtype=wire_dtype(example.dtype)),
            recipe_json=experiment.recipe.model_dump_json(),
            deployment=experiment.deployment,
            block_names=[block.name for block in chain.blocks],
            block_behaviours=[pb.BlockBehaviour(numbers=numbers) for numbers in chain.behaviours],
        )
        response = await client.open_session(request)
        session = cls(response.session_id, client, experiment, workers, retry)
        try:
            session._check_limits(response)
            await session._compare(list(response.block_digests))
            for block in chain.blocks[experiment.deployment.cut :]:
                await session._upload_differing(block, response.block_digests[block.index], 0)
        except BaseException:
            await session.abandon()
            raise
        return session

    async def evaluate(self, test: EvaluationLoader, deployment: pb.Deployment) -> pb.EvaluateResponse:
        """Evaluate `test` with the weights of now, as deployed; the pipeline must be drained."""
        codec, raw = codec_by_name(deployment.codec), codec_by_name("raw")

        async def tensors() -> AsyncIterator[WireTensor]:
            number, batches = 0, test.iterate()
            while (batch := await self._workers.load.run(next, batches, None)) is not None:
                yield to_wire(raw.encode(narrowed(batch.labels)), number, Role.ROLE_LABEL, deployment.epoch)
                feature = await self._workers.compute.run(self._experiment.stage.evaluate, batch.inputs)
                encoding = await encoded(feature, codec, self._workers.codec)
                yield to_wire(encoding, number, Role.ROLE_FEATURE, deployment.epoch)
                number += 1

        return await self._retry.run(lambda: self._client.evaluate(self.id, tensors()))

    async def collect(self, cut: int) -> None:
        """Bring the weights of the cloud's blocks [cut, L) home, so that the user's module is whole."""
        for block in self._experiment.chain.blocks[cut:]:
            tensors = await self.download_block(block, weights_only=True)
            await self._workers.compute.run(block_state.restore, block, None, None, tensors)

    async def download_block(self, block: Block, *, weights_only: bool) -> block_state.BlockTensors:
        """The state of one of the cloud's blocks. Raises ProtocolError when it is no state of a block."""
        limit = block_state.max_serialized_bytes(block, self._experiment.recipe.optimizer)
        data = await self._retry.run(
            lambda: self._client.download_block(self.id, block.index, limit, weights_only=weights_only)
        )
        return await self._workers.compute.run(block_state.deserialize, bytes(data))

    async def upload_block(self, block: Block, tensors: block_state.BlockTensors, deployment_epoch: int) -> None:
        """Bring the state of a block to the trainer."""
        data = await self._workers.compute.run(block_state.serialize, tensors)
        encoded = codec_by_name("raw").encode(torch.frombuffer(bytearray(data), dtype=torch.uint8))
        tensor = to_wire(encoded, block.index, Role.ROLE_BLOCK, deployment_epoch)
        await self._retry.run(lambda: self._client.upload_block(self.id, tensor, self.fence()))
        if block_state.is_static(block):
            self._equal_blocks.add(block.index)

    def must_move(self, block: Block) -> bool:
        """Whether the trainer needs the state of a block that is to run there: not of one that never changes and is there."""
        return block.index not in self._equal_blocks

    async def commit_migration(self, next_step: int, deployment: pb.Deployment) -> None:
        """Move the cut at the trainer; when the answer is lost, ask again, which changes nothing more.

        Raises UnreachableError when that cannot be found out, RefusedError when the trainer keeps the old deployment.
        """
        await self._retry.run(lambda: self._client.commit_migration(self.id, next_step, deployment, self.fence()))

    async def measure_cloud(self, cut: int, repeats: int) -> list[float]:
        """Seconds of each of `repeats` steps of the cloud's blocks at `cut`; the session cannot train afterwards."""
        return await self._client.measure_stage(self.id, cut, repeats)

    @asynccontextmanager
    async def keep_alive(self) -> AsyncIterator[None]:
        """Meanwhile the trainer is reminded of the session, which it would free if no call of it came for a minute."""

        async def remind() -> None:
            while True:
                await asyncio.sleep(REMINDER_SECONDS)
                with suppress(IsthmusError):  # the next call that needs the session says what is wrong
                    await self._client.get_session(self.id)

        reminding = asyncio.create_task(remind())
        try:
            yield
        finally:
            reminding.cancel()

    async def deployment(self) -> pb.Deployment:
        """The deployment that the trainer holds."""
        return (await self._retry.run(lambda: self._client.get_session(self.id))).deployment

    async def close(self, *, resumable: bool = False) -> None:
        """End the session at the trainer; a resumable one keeps its checkpoints there. Tried once."""
        await self._client.close_session(self.id, self.fence(), resumable=resumable)

    async def farewell(self, connection: Connection) -> None:
        """End a session whose results are at home: nothing that goes wrong now can harm them."""
        try:
            async with asyncio.timeout(_FAREWELL_SECONDS):
                await connection.end()
                await self.close()
        except (IsthmusError, TimeoutError) as failure:
            connection.drop()
            _log.warning("the trainer was not told that the run is done", reason=str(failure) or "it did not answer")

    async def abandon(self, *, resumable: bool = False) -> None:
        """End the session after a failure, whose reason matters and not that of the farewell."""
        with suppress(IsthmusError, TimeoutError):
            async with asyncio.timeout(_FAREWELL_SECONDS):
                await self.close(resumable=resumable)

    def _check_limits(self, response: pb.OpenSessionResponse) -> None:
        config = self._experiment.config
        if response.max_message_bytes < config.link.chunk_bytes:
            raise ConfigError(
                f"link.chunk_bytes is {config.link.chunk_bytes}; the trainer takes at most {response.max_message_bytes}"
            )
        if response.max_staleness < self._experiment.largest_staleness:
            raise ConfigError(
                f"deployment.staleness comes to {self._experiment.largest_staleness}; the trainer's limit is "
                f"{response.max_staleness} (server.max_staleness)"
            )

    async def upload_static(self, digests: list[int], cut: int, deployment_epoch: int) -> None:
        """Bring the cloud's blocks that no checkpoint holds, wherever the trainer's are not ours.

        A frozen block of the edge stays here: its weights may be the user's own, and the trainer does not run it.
        """
        await self._compare(digests)
        for block in self._experiment.chain.blocks[cut:]:
            if block_state.is_static(block):
                await self._upload_differing(block, digests[block.index], deployment_epoch)

    async def _compare(self, digests: list[int]) -> None:
        """Take note of what the trainer's blocks are."""
        blocks = self._experiment.chain.blocks
        if len(digests) != len(blocks):
            raise ProtocolError(f"the trainer sent digests of {len(digests)} blocks; the model has {len(blocks)}")
        self._equal_blocks = {
            block.index
            for block in blocks
            if block_state.is_static(block)
            and await self._workers.compute.run(block_state.digest, block) == digests[block.index]
        }

    async def _upload_differing(self, block: Block, digest: int, deployment_epoch: int) -> None:
        if await self._workers.compute.run(block_state.digest, block) != digest:
            _log.info("the trainer starts from other weights; uploading ours", block=block.name)
            await self.upload_block(block, block_state.collect(block, None), deployment_epoch)
