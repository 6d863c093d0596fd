"""Opening a session of a placement: the same blocks with equal weights at every worker, and on this device a record of it."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import structlog

from edge_agent.experiment.building import Experiment
from edge_agent.experiment.workers import Workers
from edge_agent.sessions.member import Member, abandon_at, placement_message
from edge_agent.sessions.open_session import OpenSession
from edge_agent.sessions.session_record import SessionRecord
from edge_agent.sessions.stored_session import StoredSession
from shared.checkpoint import LocalFiles
from shared.client.retry import Retry
from shared.client.trainer import TrainerClient
from shared.concurrency.tasks import gathered
from shared.errors import BusyError, ConfigError, UnreachableError
from shared.placement import Placement, PlacementPlan, held_blocks
from shared.tensor_wire import wire_dtype
from shared.training.step_log import StepLog
from shared.version import PROTOCOL_VERSION
from shared.wire.isthmus.v1 import trainer_pb2 as pb
from shared.wire.isthmus.v1.tensor_pb2 import TensorHeader

_log = structlog.get_logger(__name__)


async def open_session(
    clients: Mapping[str, TrainerClient],
    experiment: Experiment,
    workers: Workers,
    retry: Retry,
    folder: LocalFiles | None = None,
    step_log: Path | None = None,
) -> OpenSession:
    """Open a session on these trainers, and upload the blocks wherever their first weights are not ours.

    clients: by the name of the worker. folder: where the agent keeps its sessions; None keeps nothing of this one.
    step_log: the folder for its log of steps. A trainer without blocks that is not there now is absent. Raises IsthmusError
    when it cannot be done; then no side keeps anything of it.
    """
    opened: dict[str, pb.OpenSessionResponse] = {}
    placement = experiment.placement
    away: dict[str, str] = {}
    """Trainers without blocks that cannot be reached now, or have no room, and why."""

    async def open_at(worker: str, client: TrainerClient) -> None:
        try:
            opened[worker] = await client.open_session(opening_request(experiment, worker, placement))
        except (UnreachableError, BusyError) as failure:
            if held_blocks(placement, worker):
                raise
            away[worker] = str(failure)

    try:
        await gathered(*(open_at(worker, client) for worker, client in clients.items()))
        ids = {worker: opened[worker].session_id if worker in opened else "" for worker in clients}
        members = {worker: Member(client, ids[worker]) for worker, client in clients.items()}
        record = SessionRecord.begun_now(experiment.run_id, experiment, ids)
        files = folder.folder(experiment.run_id) if folder is not None else None
        stored = await workers.disk.run(StoredSession, record, files, experiment.config.checkpoints.keep)
        log = await workers.disk.run(_open_log, step_log, record)
        plan = await workers.compute.run(PlacementPlan.of, experiment.placement, experiment.facts)
        session = OpenSession(stored, members, plan, experiment, workers, retry, log)
        for worker, reason in away.items():
            session.miss(worker, reason)
        for worker, response in opened.items():
            _check_limits(experiment, worker, response)
        await gathered(
            *(
                session.upload_differing(worker, list(response.block_digests), placement, static_only=False)
                for worker, response in opened.items()
            )
        )
        await workers.disk.run(stored.begin)
    except BaseException:
        for worker, response in opened.items():
            await abandon_at(Member(clients[worker], response.session_id))
        raise
    workers_of = [*experiment.placement.workers]
    _log.info("session opened", session=session.id, at_trainers=ids, workers=workers_of, steps=experiment.steps)
    return session


@asynccontextmanager
async def session_beside(session: OpenSession, worker: str) -> AsyncIterator[Member]:
    """Another session at one trainer of a session, to measure in while that one trains: nothing is uploaded, joined or kept.

    Raises IsthmusError where the trainer has no room for it, or the session goes on without that trainer.
    """
    if worker not in session.members:
        raise UnreachableError(f"the run goes on without {worker!r}")
    client = session.members[worker].client
    opened = await client.open_session(opening_request(session.experiment, worker, session.experiment.placement))
    beside = Member(client, opened.session_id)
    try:
        yield beside
    finally:
        await abandon_at(beside)


def resume_session(
    stored: StoredSession,
    clients: Mapping[str, TrainerClient],
    experiment: Experiment,
    workers: Workers,
    retry: Retry,
    step_log: Path | None = None,
) -> OpenSession:
    """Resume a stored session; joining shows what the trainers have of it. Blocks. Raises StorageError, ConfigError."""
    ids = stored.record.trainer_sessions
    if ids.keys() != clients.keys():
        raise ConfigError(
            f"session {stored.record.session_id} is of the trainers {', '.join(ids) or 'none'}; the placement now has "
            f"{', '.join(clients) or 'none'}"
        )
    members = {worker: Member(client, ids[worker]) for worker, client in clients.items()}
    log = _open_log(step_log, stored.record)
    _log.info("session resumed", session=stored.record.session_id, steps=experiment.steps)
    plan = PlacementPlan.of(experiment.placement, experiment.facts)
    return OpenSession(stored, members, plan, experiment, workers, retry, log)


def _open_log(folder: Path | None, record: SessionRecord) -> StepLog | None:
    return None if folder is None else StepLog(folder, record.session_id, "edge")


def opening_request(experiment: Experiment, worker: str, placement: Placement) -> pb.OpenSessionRequest:
    """What opens a session on a trainer, which is this worker of a placement."""
    config, chain, example = experiment.config, experiment.chain, experiment.example
    return pb.OpenSessionRequest(
        protocol_version=PROTOCOL_VERSION,
        model=pb.Model(factory=config.model.factory, kwargs_json=json.dumps(config.model.kwargs)),
        example=TensorHeader(shape=example.shape, dtype=wire_dtype(example.dtype)),
        recipe_json=experiment.recipe.model_dump_json(),
        block_names=[block.name for block in chain.blocks],
        block_behaviours=[pb.BlockBehaviour(numbers=numbers) for numbers in chain.behaviours],
        placement=placement_message(placement),
        worker=worker,
        backward=config.deployment.backward,
        feedback=config.deployment.feedback,
        run_id=experiment.run_id,
    )


def _check_limits(experiment: Experiment, worker: str, response: pb.OpenSessionResponse) -> None:
    config = experiment.config
    if response.max_message_bytes < config.link.chunk_bytes:
        raise ConfigError(
            f"link.chunk_bytes is {config.link.chunk_bytes}; trainer {worker!r} takes at most {response.max_message_bytes}"
        )
    largest = max(config.deployment.staleness_schedule.values)
    if response.max_staleness < largest:
        raise ConfigError(
            f"deployment.staleness comes to {largest}; the limit of trainer {worker!r} is {response.max_staleness} "
            "(server.max_staleness)"
        )
