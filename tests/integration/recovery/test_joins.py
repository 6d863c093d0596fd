"""Joins of a session: refused, or served whole, whatever else happens to the session and its place meanwhile."""

import asyncio
import errno
import threading

import grpc
import pytest

from cloud_trainer.sessions.session_store import SessionStore
from shared.checkpoint import CheckpointName, CheckpointStore, LocalFiles
from shared.client.config import TrainerAddressConfig
from shared.client.link_call import StreamListener
from shared.client.trainer import TrainerClient
from shared.config import LinkConfig
from shared.errors import FencedError, OutdatedTermError
from shared.placement import AGENT
from shared.version import PROTOCOL_VERSION
from shared.wire.isthmus.v1 import control_pb2
from shared.wire.isthmus.v1 import trainer_pb2 as pb
from shared.wire.isthmus.v1.link_pb2 import LinkOpening
from tests.support.running import running_trainer
from tests.support.wire import RawPeer, joining, open_request, until_held

pytestmark = pytest.mark.usefixtures("one_thread")
Code = grpc.StatusCode


async def test_a_session_that_is_being_closed_is_not_built_again(monkeypatch):
    closing, removing, forget = asyncio.Event(), asyncio.Event(), SessionStore.forget

    async def forget_late(store, session_id):
        closing.set()
        await removing.wait()
        await forget(store, session_id)

    monkeypatch.setattr(SessionStore, "forget", forget_late)
    async with running_trainer() as server, RawPeer(server.address) as peer:
        session = await peer.open()
        await peer.unary("JoinSession", joining(session))
        leaving = asyncio.create_task(peer.close_session(session))
        await closing.wait()
        assert (await peer.unary("JoinSession", joining(session, 2))).code is Code.UNAVAILABLE
        removing.set()
        await leaving
        assert (await peer.unary("JoinSession", joining(session, 2))).code is Code.NOT_FOUND


async def test_a_join_that_is_not_newer_than_the_last_is_refused_and_so_is_what_its_agent_calls():
    async with running_trainer() as server, RawPeer(server.address) as peer:
        session = await peer.open()
        codes = [(await peer.unary("JoinSession", joining(session, term))).code.name for term in (5, 5, 4, 6)]
        assert codes == ["OK", "ABORTED", "ABORTED", "OK"]
        for method, request in (
            ("CommitPlacement", pb.CommitPlacementRequest(session_id=session, fence=pb.Fence(session_term=5))),
            ("CloseSession", pb.CloseSessionRequest(session_id=session, fence=pb.Fence(session_term=5))),
        ):
            end = await peer.unary(method, request.SerializeToString())
            assert end.code.name == "ABORTED", method
        assert await peer.next_step(session) == 0, "the session is still there"


async def test_a_join_with_a_term_of_before_is_told_the_last_one_only_where_no_agent_is_linked():
    async with running_trainer() as server, RawPeer(server.address) as peer:
        session = await peer.open()
        async with TrainerClient(TrainerAddressConfig(address=server.address), LinkConfig()) as client:
            await client.join_session(session, 7)
            with pytest.raises(OutdatedTermError, match="attached with term 7 before term 3 came") as told:
                await client.join_session(session, 3)
            assert told.value.term == 7
            opening = LinkOpening(protocol_version=PROTOCOL_VERSION, session_id=session, session_term=7, worker=AGENT)
            call, _ = await client.link(opening, StreamListener(lambda *_: None, lambda: None, lambda *_: None))
            with pytest.raises(FencedError, match="another agent has it") as refused:
                await client.join_session(session, 3)
            assert type(refused.value) is FencedError
            await call.end_writing()


@pytest.mark.slow
async def test_a_join_that_was_agreed_to_cannot_lose_its_place(tmp_path, monkeypatch):
    create, fencing, go_on = LocalFiles.create, threading.Event(), threading.Event()

    def slowly(files, name):
        fencing.set()
        assert go_on.wait(60)
        return create(files, name)

    flags = [f"checkpoints.location={tmp_path}", "server.unattached_seconds=3"]
    async with running_trainer(*flags) as server, RawPeer(server.address) as peer:
        monkeypatch.setattr(LocalFiles, "create", slowly)
        session, _ = await peer.open(), await peer.open()  # the second's time begins later
        join = asyncio.ensure_future(peer.unary("JoinSession", joining(session)))
        assert await asyncio.to_thread(fencing.wait, 60)
        await until_held(server, peer, 1)
        go_on.set()
        assert (await join).code is Code.OK


async def test_a_full_disk_refuses_a_join_rather_than_forgetting_its_term(tmp_path, monkeypatch):
    async with running_trainer(f"checkpoints.location={tmp_path}") as server, RawPeer(server.address) as peer:
        session = await peer.open()

        def full(_handle):
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as patched:
            patched.setattr("shared.checkpoint.files.os.fsync", full)
            refused = await peer.unary("JoinSession", joining(session, 1))
        assert refused.code is Code.UNAVAILABLE
        assert "is its disk full?" in refused.details
        ends = [await peer.unary("JoinSession", joining(session, term)) for term in (2, 2, 1)]
        assert [end.code.name for end in ends] == ["OK", "ABORTED", "ABORTED"]


async def test_a_join_for_which_there_is_no_room_writes_nothing(tmp_path, monkeypatch):
    flags = [f"checkpoints.location={tmp_path}", "server.max_sessions=1"]
    async with running_trainer(*flags) as server, RawPeer(server.address) as peer:
        kept = await peer.open()
        await server.service.end_session(kept, resumable=True)
        CheckpointStore(LocalFiles(tmp_path / "cloud-trainer" / kept), 1).save(CheckpointName(0, 0), {}, b"")
        await peer.open()
        synced = []
        monkeypatch.setattr("shared.checkpoint.files.os.fsync", synced.append)
        end = await peer.unary("JoinSession", joining(kept))
        assert end.code is Code.RESOURCE_EXHAUSTED, end
        assert synced == []


async def test_a_join_that_has_its_term_has_its_place_though_others_ask_for_one_meanwhile(tmp_path, monkeypatch):
    flags = [f"checkpoints.location={tmp_path}", "server.max_sessions=1"]
    async with running_trainer(*flags) as server, RawPeer(server.address) as peer:
        kept = await peer.open()
        await server.service.end_session(kept, resumable=True)
        create, fencing, go_on = LocalFiles.create, threading.Event(), threading.Event()

        def slowly(files, name):
            fencing.set()
            assert go_on.wait(60)
            return create(files, name)

        monkeypatch.setattr(LocalFiles, "create", slowly)
        join = asyncio.ensure_future(peer.unary("JoinSession", joining(kept)))
        assert await asyncio.to_thread(fencing.wait, 60)
        end = await peer.unary("OpenSession", open_request().SerializeToString())
        assert end.code is Code.RESOURCE_EXHAUSTED, end
        go_on.set()
        assert (await join).code is Code.OK


async def test_a_place_that_was_held_for_a_join_that_failed_is_free_again(tmp_path, monkeypatch):
    flags = [f"checkpoints.location={tmp_path}", "server.max_sessions=1"]
    async with running_trainer(*flags) as server, RawPeer(server.address) as peer:
        kept = await peer.open()
        await server.service.end_session(kept, resumable=True)

        def full(_handle):
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as patched:
            patched.setattr("shared.checkpoint.files.os.fsync", full)
            assert (await peer.unary("JoinSession", joining(kept))).code is Code.UNAVAILABLE
        assert len(server.service.sessions) == 0
        assert (await peer.unary("JoinSession", joining(kept, 2))).code is Code.OK


@pytest.mark.parametrize(("resumable", "code"), [(False, Code.NOT_FOUND), (True, Code.UNAVAILABLE)])
async def test_a_session_that_is_closed_while_it_is_joined_is_not_served(monkeypatch, resumable, code):
    begun, go_on = asyncio.Event(), asyncio.Event()
    fence = SessionStore.fence

    async def slowly(*arguments):
        begun.set()
        await go_on.wait()
        return await fence(*arguments)

    monkeypatch.setattr(SessionStore, "fence", slowly)
    async with running_trainer() as server, RawPeer(server.address) as peer:
        session = await peer.open()
        join = asyncio.create_task(peer.unary("JoinSession", joining(session)))
        await begun.wait()
        await peer.close_session(session, resumable=resumable)
        go_on.set()
        end = await join
        assert end.code is code, end
        assert not end.responses
        control = server.service.control(asyncio.Event())
        listed = await control.list_sessions(control_pb2.TrainerControlServiceListSessionsRequest())
        kept = {status.session_id for status in listed.sessions}
        assert (session in kept) is resumable, "kept where it may be resumed"
