"""Opening a session of a placement: the same blocks with equal weights at every worker, and a record of it on this device."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import structlog

from edge_agent.experiment.agent_threads import AgentThreads
from edge_agent.experiment.experiment import Experiment
from edge_agent.sessions.group_member import adopt_length, deciding_trainer
from edge_agent.sessions.links_between import check_links
from edge_agent.sessions.membership import Membership
from edge_agent.sessions.messages import abandon_at, check_limits, opening_request
from edge_agent.sessions.open_session import REMINDER_SECONDS, OpenSession
from edge_agent.sessions.session_record import SessionRecord
from edge_agent.sessions.session_state import SessionState
from edge_agent.sessions.stored_session import StoredSession, members_folder
from edge_agent.sessions.trainer_worker import TrainerWorker
from shared.checkpoint import LocalFiles
from shared.client.retry import Retry
from shared.client.trainer import TrainerClient
from shared.concurrency.tasks import gathered, meanwhile
from shared.errors import BusyError, ConfigError, IsthmusError, SessionLostError, UnreachableError
from shared.placement import PlacementPlan, held_blocks
from shared.training.step_log import StepLog
from shared.wire.isthmus.v1 import trainer_pb2 as pb

_log = structlog.get_logger(__name__)


async def open_session(
    clients: Mapping[str, TrainerClient],
    experiment: Experiment,
    threads: AgentThreads,
    retry: Retry,
    folder: LocalFiles | None = None,
    step_log: Path | None = None,
) -> OpenSession:
    """Open a session on the trainers of the experiment's placement, and upload the blocks whose first weights differ from ours.

    clients: of all trainers that are configured, by name. folder: the agent's folder of sessions, where its record can
    begin; None stores nothing of it. step_log: the folder for its log of steps. A trainer without blocks that does not
    answer now is absent. Raises IsthmusError on a failure; then no side keeps anything of it.
    """
    config = experiment.config
    opened: dict[str, pb.OpenSessionResponse] = {}
    opening_seconds = 0.0
    placement = experiment.placement
    away: dict[str, str] = {}
    """Trainers without blocks that cannot be reached now, or have no room, and the reason."""

    async def open_at(worker: str, client: TrainerClient) -> None:
        nonlocal opening_seconds
        asked_seconds = time.monotonic()
        try:
            opened[worker] = await client.open_session(opening_request(experiment, worker, placement))
        except (UnreachableError, BusyError) as failure:
            if held_blocks(placement, worker):
                raise
            away[worker] = str(failure)
        else:
            opening_seconds = max(opening_seconds, time.monotonic() - asked_seconds)

    try:
        if config.member is not None:  # the others hear how many steps that one has told
            decider = deciding_trainer(experiment, placement)
            await open_at(decider, clients[decider])
            adopt_length(experiment, decider, opened[decider])
        left = [worker for worker in experiment.trainers if worker not in opened]
        await gathered(*(open_at(worker, clients[worker]) for worker in left))
        ids = {worker: opened[worker].session_id if worker in opened else "" for worker in experiment.trainers}
        record = SessionRecord.begun_now(experiment.run_id, experiment, ids)
        files = folder.folder(experiment.run_id) if folder is not None else None
        stored = await threads.disk.run(StoredSession, record, files, config.checkpoints.keep, members_folder(config))
        log = await threads.disk.run(_open_log, step_log, record)
        plan = await threads.compute.run(PlacementPlan.of, experiment.placement, experiment.facts)
        session = _session(SessionState(stored, experiment, threads, plan, log), clients, retry, opening_seconds)
        for worker, reason in away.items():
            session.members.miss(worker, reason)
        experiment.leaves_out_late = any(response.leaves_out_late for response in opened.values())
        for worker, response in opened.items():
            check_limits(config, worker, response)
        await gathered(
            *(session.members[worker].take_first_weights(response, placement) for worker, response in opened.items())
        )
    except BaseException:
        for worker, response in opened.items():
            await abandon_at(clients[worker], response.session_id)
        raise
    workers_of = [*experiment.placement.workers]
    _log.info("session opened", session=session.id, at_trainers=ids, workers=workers_of, steps=experiment.steps)
    return session


async def open_when_there(
    clients: Mapping[str, TrainerClient],
    experiment: Experiment,
    threads: AgentThreads,
    retry: Retry,
    patience: Retry,
    folder: LocalFiles | None = None,
    step_log: Path | None = None,
    lost: StoredSession | None = None,
) -> OpenSession:
    """Open a session as `open_session` does, whose trainers can dial each other, and store it: again and again while one is
    away in the middle of it.

    retry: of the session. patience: repeats the opening for as long as that may take. lost: see `StoredSession.begin`.
    Raises any other IsthmusError at once.
    """

    async def attempt() -> OpenSession:
        try:
            session = await open_session(clients, experiment, threads, retry, folder, step_log)
            try:
                await check_links(session, session.state.plan)  # or it would be found out at the first step
                await threads.disk.run(session.stored.begin, lost)
            except BaseException:
                await session.abandon()
                if lost is None:
                    await threads.disk.run(session.stored.remove)
                raise
        except SessionLostError as failure:  # the trainer is another process than the one that has just opened it
            raise UnreachableError(str(failure)) from failure
        return session

    return await patience.run(attempt)


@asynccontextmanager
async def session_beside(session: OpenSession, worker: str) -> AsyncIterator[TrainerWorker]:
    """Open another session at one trainer, to measure in it during training: nothing is uploaded, joined or kept.

    The trainer is reminded of it while the body runs.

    Raises IsthmusError if the trainer has no room for it, or the session continues without that trainer.
    """
    if worker not in session.members:
        raise UnreachableError(f"the run goes on without {worker!r}")
    client = session.members[worker].client
    opened = await client.open_session(opening_request(session.experiment, worker, session.experiment.placement))
    beside = TrainerWorker(worker, client, opened.session_id, session.state)

    async def remind() -> None:
        while True:
            await asyncio.sleep(REMINDER_SECONDS)
            with suppress(IsthmusError):  # the next call that needs the session reports the error
                await beside.remind()

    try:
        async with meanwhile(remind()):
            yield beside
    finally:
        await abandon_at(client, opened.session_id)


def resume_session(
    stored: StoredSession,
    clients: Mapping[str, TrainerClient],
    experiment: Experiment,
    threads: AgentThreads,
    retry: Retry,
    step_log: Path | None = None,
) -> OpenSession:
    """Resume a stored session. Joining shows what the trainers have of it. Blocks. Raises StorageError, ConfigError."""
    ids = stored.record.trainer_sessions
    if missing := sorted(ids.keys() - clients.keys()):
        raise ConfigError(
            f"session {stored.record.session_id} is at the trainer {missing[0]!r}, which is not configured any more; name it "
            "among the trainers"
        )
    log = _open_log(step_log, stored.record)
    _log.info("session resumed", session=stored.record.session_id, steps=experiment.steps)
    plan = PlacementPlan.of(experiment.placement, experiment.facts)
    return _session(SessionState(stored, experiment, threads, plan, log), clients, retry)


def _session(
    state: SessionState, clients: Mapping[str, TrainerClient], retry: Retry, opening_seconds: float | None = None
) -> OpenSession:
    record = state.stored.record
    trainers = {
        name: TrainerWorker(name, clients[name], session_id, state)
        for name, session_id in record.trainer_sessions.items()
    }
    candidates = {name: client for name, client in clients.items() if name not in trainers}
    members = Membership(trainers, record.left_out, state.placement, candidates, opening_seconds)
    return OpenSession(state, members, retry)


def _open_log(folder: Path | None, record: SessionRecord) -> StepLog | None:
    return None if folder is None else StepLog(folder, record.session_id, "edge")
