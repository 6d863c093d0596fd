"""The trainer's control service: sessions that each caller may see."""

import asyncio

import grpc
import pytest
from prometheus_client import CollectorRegistry

from cloud_trainer.control.service import TrainerControl
from cloud_trainer.metrics import TrainerMetrics
from cloud_trainer.sessions.registry import SessionRegistry
from cloud_trainer.sessions.session_store import Quota, SessionStore
from shared.transport.auth.callers import ANYONE, Caller, set_caller
from shared.transport.auth.tokens import AN_AGENTS, Scope
from shared.transport.rpc.status import StatusError
from shared.wire.isthmus.v1 import control_pb2 as pb

OURS, THEIRS = Caller("ours", frozenset(AN_AGENTS)), Caller("theirs", frozenset(AN_AGENTS))
OPERATOR = Caller("ops", frozenset([Scope.READ, Scope.CONTROL, Scope.OPERATE]))


def trainer_control(sessions, ended):
    async def end(session_id, _resumable):
        ended.append(session_id)

    store = SessionStore(None, 1, Quota(1, 1))
    return TrainerControl(sessions, store, TrainerMetrics(CollectorRegistry()), end, asyncio.Event(), "cpu")


@pytest.mark.parametrize(("who", "sees"), [(OURS, True), (THEIRS, False), (OPERATOR, True), (ANYONE, True)])
async def test_a_session_is_visible_to_its_subject_and_to_operators(who, sees):
    sessions = SessionRegistry(3, 60.0, 60.0, lambda _: None)
    control = trainer_control(sessions, ended := [])
    set_caller(OURS)
    session_id = sessions.reserve()
    set_caller(who)
    listed = (await control.list_sessions(pb.TrainerControlServiceListSessionsRequest())).sessions
    watched = (await control.get_status(pb.TrainerControlServiceGetStatusRequest())).status
    assert [session.session_id for session in listed] == ([session_id] if sees else [])
    assert [session.subject for session in watched.sessions] == (["ours"] if sees else [])
    assert watched.open_sessions == 1, "how full the trainer is, everybody may know who would come in"
    closing = pb.TrainerControlServiceCloseSessionRequest(session_id=session_id)
    if sees:
        await control.close_session(closing)
        assert ended == [session_id]
        return
    with pytest.raises(StatusError) as refused:
        await control.close_session(closing)
    assert refused.value.code is grpc.StatusCode.NOT_FOUND
    assert not ended
