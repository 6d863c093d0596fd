"""Opening a session: the same blocks with equal weights on both sides, and on this device a record of it."""

import json
from pathlib import Path

import structlog

from edge_agent.experiment.building import Experiment
from edge_agent.experiment.workers import Workers
from edge_agent.sessions.open_session import OpenSession, abandon
from edge_agent.sessions.session_record import SessionRecord
from edge_agent.sessions.stored_session import StoredSession
from shared.checkpoint import LocalFiles
from shared.client.retry import Retry
from shared.client.trainer import TrainerClient
from shared.errors import ConfigError
from shared.tensor_wire import wire_dtype
from shared.training.step_log import StepLog
from shared.version import PROTOCOL_VERSION
from shared.wire.isthmus.v1 import trainer_pb2 as pb
from shared.wire.isthmus.v1.tensor_pb2 import TensorHeader

_log = structlog.get_logger(__name__)


async def open_session(
    client: TrainerClient,
    experiment: Experiment,
    workers: Workers,
    retry: Retry,
    folder: LocalFiles | None = None,
    step_log: Path | None = None,
) -> OpenSession:
    """Open a session, and upload the cloud's blocks wherever the trainer's first weights are not ours.

    folder: where the agent keeps its sessions; None keeps nothing of this one. step_log: the folder for its log of steps.
    Raises IsthmusError when that cannot be done; then neither side keeps anything of it.
    """
    response = await client.open_session(_request(experiment))
    record = SessionRecord.begun_now(response.session_id, experiment)
    files = folder.folder(record.session_id) if folder is not None else None
    stored = await workers.disk.run(StoredSession, record, files, experiment.config.checkpoints.keep)
    try:
        log = await workers.disk.run(_open_log, step_log, record)
        session = OpenSession(stored, client, experiment, workers, retry, log)
        _check_limits(experiment, response)
        await session.upload_first(list(response.block_digests), experiment.deployment.cut)
        await workers.disk.run(stored.begin)
    except BaseException:
        await abandon(client, record.session_id, pb.Fence())
        raise
    _log.info("session opened", session=session.id, cut=experiment.deployment.cut, steps=experiment.steps)
    return session


def resume_session(
    stored: StoredSession,
    client: TrainerClient,
    experiment: Experiment,
    workers: Workers,
    retry: Retry,
    step_log: Path | None = None,
) -> OpenSession:
    """Resume a stored session; attaching shows whether the trainer has it still. Blocks. Raises StorageError."""
    log = _open_log(step_log, stored.record)
    _log.info("session resumed", session=stored.record.session_id, steps=experiment.steps)
    return OpenSession(stored, client, experiment, workers, retry, log)


def _open_log(folder: Path | None, record: SessionRecord) -> StepLog | None:
    return None if folder is None else StepLog(folder, record.session_id, "edge")


def _request(experiment: Experiment) -> pb.OpenSessionRequest:
    config, chain, example = experiment.config, experiment.chain, experiment.example
    return pb.OpenSessionRequest(
        protocol_version=PROTOCOL_VERSION,
        model=pb.Model(factory=config.model.factory, kwargs_json=json.dumps(config.model.kwargs)),
        example=TensorHeader(shape=example.shape, dtype=wire_dtype(example.dtype)),
        recipe_json=experiment.recipe.model_dump_json(),
        deployment=experiment.deployment,
        block_names=[block.name for block in chain.blocks],
        block_behaviours=[pb.BlockBehaviour(numbers=numbers) for numbers in chain.behaviours],
    )


def _check_limits(experiment: Experiment, response: pb.OpenSessionResponse) -> None:
    config = experiment.config
    if response.max_message_bytes < config.link.chunk_bytes:
        raise ConfigError(
            f"link.chunk_bytes is {config.link.chunk_bytes}; the trainer takes at most {response.max_message_bytes}"
        )
    if response.max_staleness < experiment.largest_staleness:
        raise ConfigError(
            f"deployment.staleness comes to {experiment.largest_staleness}; the trainer's limit is "
            f"{response.max_staleness} (server.max_staleness)"
        )
