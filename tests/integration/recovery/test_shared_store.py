"""Two trainers that keep their sessions in one place, as two of one user do, do each other no harm."""

import asyncio

import grpc
import pytest

from isthmus import run_training
from shared.transport.auth.callers import Caller, set_caller
from shared.transport.auth.scopes import Scope
from shared.transport.rpc.status import StatusError
from shared.wire.isthmus.v1 import control_pb2 as pb
from tests.support.commands import MLP
from tests.support.running import Listening, edge_config, running_trainer
from tests.support.wire import RawPeer

pytestmark = pytest.mark.usefixtures("one_thread")

TRAINING = [*MLP, "training.epochs=1", "training.max_steps=20", "training.evaluate_every_epochs=0"]
OPERATOR = Caller("", frozenset([Scope.READ, Scope.CONTROL, Scope.OPERATE]))


async def shown(server):
    control = server.service.control(asyncio.Event())
    listed = await control.list_sessions(pb.TrainerControlServiceListSessionsRequest())
    return {session.session_id: pb.TrainerSessionState.Name(session.state) for session in listed.sessions}


@pytest.mark.slow
async def test_a_session_that_another_trainer_has_is_shown_as_such_and_is_not_closed(tmp_path):
    set_caller(OPERATOR)
    location = f"checkpoints.location={tmp_path / 'trainers'}"
    async with running_trainer(location) as first, running_trainer(location) as second:
        looked = []

        async def meddle():
            (session,) = await shown(first)
            assert await shown(second) == {session: "TRAINER_SESSION_STATE_ELSEWHERE"}
            request = pb.TrainerControlServiceCloseSessionRequest(session_id=session)
            with pytest.raises(StatusError, match="is open in another trainer") as refused:
                await second.service.control(asyncio.Event()).close_session(request)
            assert refused.value.code is grpc.StatusCode.FAILED_PRECONDITION

        def on_progress(progress):
            if progress.steps == 5:
                looked.append(asyncio.ensure_future(meddle()))

        flags = [*TRAINING, f"checkpoints.location={tmp_path / 'edge'}", f"trainer.address={first.address}"]
        flags += ["training.max_steps=200", "training.epochs=10", "checkpoints.every_steps=3"]
        done = await run_training(edge_config(*flags), Listening(on_progress))
        await looked[0]
        assert done.summary.steps == 200


async def test_a_trainer_that_is_full_leaves_the_live_sessions_of_its_neighbour_alone(tmp_path):
    flags = [f"checkpoints.location={tmp_path}", "checkpoints.max_sessions_per_subject=1"]
    async with (
        running_trainer(*flags) as first,
        running_trainer(*flags) as second,
        RawPeer(first.address) as near,
        RawPeer(second.address) as far,
    ):
        live = await near.open_and_join()
        other = await far.open()
        assert {path.name for path in (tmp_path / "cloud-trainer").iterdir()} == {live, other}
        assert await near.next_step(live) == 0


async def test_a_session_that_moved_to_another_trainer_is_not_forgotten_by_the_one_that_had_it(tmp_path):
    location = f"checkpoints.location={tmp_path / 'trainers'}"
    set_caller(OPERATOR)
    async with (
        running_trainer(location) as first,
        running_trainer(location) as second,
        RawPeer(first.address) as near,
        RawPeer(second.address) as far,
    ):
        session = await near.open_and_join()
        await far.join(session, 2)
        await first.service.end_session(session, resumable=False)
        assert (tmp_path / "trainers" / "cloud-trainer" / session / "session.json").exists()
        assert await far.next_step(session) == 0
