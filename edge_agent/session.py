"""A session with the trainer: opened with equal weights on both sides, evaluated through the cut, brought home at the end."""

import json
from collections.abc import AsyncIterator, Callable

import structlog
import torch

from edge_agent.client import TrainerClient, TrainingCall
from edge_agent.data import Dataset, evaluation_batches
from edge_agent.experiment import Experiment
from edge_agent.pipeline import Workers
from shared.codec import codec_by_name
from shared.errors import ConfigError
from shared.model import block_state
from shared.tensor_wire import to_wire, wire_dtype
from shared.transport.framing import WireTensor
from shared.version import PROTOCOL_VERSION
from shared.wire.isthmus.v1 import trainer_pb2 as pb
from shared.wire.isthmus.v1.tensor_pb2 import Frame, Role, TensorHeader

_log = structlog.get_logger(__name__)


class EdgeSession:
    """An open session; `id` names it at the trainer."""

    def __init__(self, session_id: str, client: TrainerClient, experiment: Experiment, workers: Workers) -> None:
        self.id = session_id
        self._client = client
        self._experiment = experiment
        self._workers = workers

    @classmethod
    async def open(cls, client: TrainerClient, experiment: Experiment, workers: Workers) -> "EdgeSession":
        """Open a session and upload the cloud's blocks wherever its first weights are not ours."""
        config, chain, example = experiment.config, experiment.chain, experiment.example
        request = pb.OpenSessionRequest(
            protocol_version=PROTOCOL_VERSION,
            model=pb.Model(factory=config.model.factory, kwargs_json=json.dumps(config.model.kwargs)),
            example=TensorHeader(shape=example.shape, dtype=wire_dtype(example.dtype)),
            recipe_json=experiment.recipe.model_dump_json(),
            deployment=experiment.deployment,
            block_names=[block.name for block in chain.blocks],
        )
        response = await client.open_session(request)
        session = cls(response.session_id, client, experiment, workers)
        if response.max_message_bytes < config.link.chunk_bytes:
            raise ConfigError(
                f"link.chunk_bytes is {config.link.chunk_bytes}; the trainer takes at most {response.max_message_bytes}"
            )
        await session._upload_differing(list(response.block_digests))
        return session

    async def attach(
        self, next_step: int, accept: Callable[[Frame], None], on_delivered: Callable[[WireTensor, float, int], None]
    ) -> TrainingCall:
        """Attach the training stream; see `TrainerClient.attach`."""
        return await self._client.attach(self.id, next_step, accept, on_delivered)

    async def evaluate(self, test: Dataset, deployment: pb.Deployment) -> pb.EvaluateResponse:
        """Evaluate `test` with the weights of now, as deployed; the pipeline must be drained."""
        config = self._experiment.config.data
        batches = evaluation_batches(test, config.batch_size, config.workers)
        codec, raw = codec_by_name(deployment.codec), codec_by_name("raw")

        async def tensors() -> AsyncIterator[WireTensor]:
            number = 0
            while (batch := await self._workers.load.run(next, batches, None)) is not None:
                feature = await self._workers.compute.run(self._experiment.stage.evaluate, batch.inputs)
                encoded = await self._workers.codec.run(codec.encode, feature)
                yield to_wire(encoded, number, Role.ROLE_FEATURE, deployment.epoch)
                yield to_wire(raw.encode(batch.labels), number, Role.ROLE_LABEL, deployment.epoch)
                number += 1

        return await self._client.evaluate(self.id, tensors())

    async def collect(self) -> None:
        """Bring the cloud's weights home, so that the user's module is whole."""
        for block in self._experiment.chain.blocks[self._experiment.deployment.cut :]:
            limit = block_state.max_serialized_bytes(block)
            data = await self._client.download_weights(self.id, block.index, limit)
            tensors = await self._workers.compute.run(block_state.deserialize, bytes(data))
            await self._workers.compute.run(block_state.restore, block, None, frozenset(), tensors)

    async def close(self) -> None:
        """End the session at the trainer."""
        await self._client.close_session(self.id)

    async def _upload_differing(self, digests: list[int]) -> None:
        cloud_blocks = self._experiment.chain.blocks[self._experiment.deployment.cut :]
        for block, digest in zip(cloud_blocks, digests, strict=True):
            if await self._workers.compute.run(block_state.digest, block) == digest:
                continue
            _log.info("the trainer starts from other weights; uploading ours", block=block.name)
            data = await self._workers.compute.run(block_state.serialize, block_state.collect(block, None))
            encoded = codec_by_name("raw").encode(torch.frombuffer(bytearray(data), dtype=torch.uint8))
            await self._client.upload_block(self.id, to_wire(encoded, block.index, Role.ROLE_BLOCK, 0))
