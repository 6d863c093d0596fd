"""The trainer's control service: sessions that each caller may see."""

import asyncio
import re
from types import SimpleNamespace

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from prometheus_client import CollectorRegistry
from rich.console import Console

from cloud_trainer.config import GroupConfig
from cloud_trainer.control.service import TrainerControl
from cloud_trainer.control.tables import group_table, status_table
from cloud_trainer.groups.merging import GroupFigures
from cloud_trainer.metrics import TrainerMetrics
from cloud_trainer.sessions.session_registry import SessionRegistry
from cloud_trainer.sessions.session_store import Quota, SessionStore
from shared.transport.auth.callers import ANYONE, Caller, set_caller
from shared.transport.auth.scopes import AN_AGENTS, Scope
from shared.transport.rpc.status import StatusError
from shared.wire.isthmus.v1 import control_pb2 as pb

OURS, THEIRS = Caller("ours", frozenset(AN_AGENTS)), Caller("theirs", frozenset(AN_AGENTS))
STRANGER = Caller("stranger", frozenset(AN_AGENTS))
OPERATOR = Caller("ops", frozenset([Scope.READ, Scope.CONTROL, Scope.OPERATE]))


def trainer_control(sessions, ended, groups=()):
    async def end(session_id, _resumable):
        ended.append(session_id)

    store = SessionStore(None, 1, Quota(1, 1))
    return TrainerControl(sessions, groups, store, TrainerMetrics(CollectorRegistry()), end, asyncio.Event(), "cpu")


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


def a_group(session_id, **config):
    """Return a group of two, of which rank 1 has a session."""
    session = SimpleNamespace(
        id=session_id, attachment=SimpleNamespace(attached=True), worker=SimpleNamespace(next_step=6)
    )
    config = GroupConfig(name="line", size=2, **config)
    figures = GroupFigures()
    figures.left_out[0], figures.late[1] = 3, 2
    return SimpleNamespace(
        config=config,
        life=2,
        step=7,
        steps=40,
        members=[0, 1],
        missing=[0],
        seats=SimpleNamespace(sessions={1: session}),
        figures=figures,
        late={0: 65.0},
        owner=lambda rank: "ours" if rank == 0 else None,
    )


@pytest.mark.parametrize(("who", "lists"), [(OURS, True), (THEIRS, True), (STRANGER, False), (OPERATOR, True)])
async def test_a_group_is_visible_to_those_who_may_be_members_and_to_operators(who, lists):
    sessions = SessionRegistry(3, 60.0, 60.0, lambda _: None)
    set_caller(OURS)
    session_id = sessions.reserve()
    group = a_group(session_id, subjects=("ours", "theirs"))
    control = trainer_control(sessions, [], [group])
    set_caller(who)
    listed = (await control.list_groups(pb.ListGroupsRequest())).groups
    assert [found.name for found in listed] == (["line"] if lists else [])
    if lists:
        (found,) = listed
        away, linked = found.members
        assert (found.life, found.step, found.steps) == (2, 7, 40)
        assert (away.awaited, away.linked, away.left_out, away.late_for.seconds) == (True, False, 3, 65)
        assert away.owner == ("ours" if who is not THEIRS else "")
        status = (await control.get_status(pb.TrainerControlServiceGetStatusRequest())).status
        assert [waiting.name for waiting in status.groups_that_wait] == ["line"]
        assert (linked.awaited, linked.linked, linked.step, linked.late) == (False, True, 6, 2)
        seen = (session_id, "ours") if who is not THEIRS else ("", "")
        assert (linked.session_id, linked.subject) == seen


def shown_by(table):
    """Return what a terminal of 80 columns shows."""
    with (console := Console(width=80)).capture() as captured:
        console.print(table)
    return captured.get()


def test_the_table_says_for_whom_a_group_waits():
    members = [
        pb.GroupMemberStatus(rank=0, awaited=True, takes_part=True, owner="theirs", late_for=Duration(seconds=65)),
        pb.GroupMemberStatus(rank=1, linked=True, step=6, subject="ours", late=2, takes_part=True),
        pb.GroupMemberStatus(rank=2),
    ]
    group = pb.GroupStatus(name="line", size=3, step=7, steps=40, members=members)
    status = shown_by(status_table(pb.TrainerStatus(groups_that_wait=[group])))
    assert "line waits at step 7 for rank 0 (theirs) for 65.0 s" in status
    shown = shown_by(group_table(group))
    assert "line: step 7 of 40, 2 members" in shown
    rows = [row.split() for row in re.findall(r"[│|](.*)[│|]", shown.replace("│", "|"))]
    assert any("away" in row and "(theirs)" in row and "65.0" in row for row in rows)
    assert any("linked" in row and "for" not in row for row in rows)
    assert any("none" in row and "yes" not in row for row in rows), "it has left"
    assert any("linked" in row and "(ours)" in row and "yes" not in row for row in rows)
