"""Life of a session on a trainer: until it is closed, even at work, or was not used for a while."""

import asyncio
import os
import threading
from types import SimpleNamespace

import grpc
import pytest

from cloud_trainer.rpc.service import TrainerService
from cloud_trainer.sessions.session_registry import SessionRegistry
from cloud_trainer.sessions.session_store import SessionStore
from edge_agent.experiment.agent_threads import AgentThreads
from edge_agent.experiment.experiment import Experiment
from edge_agent.sessions.opening import open_session
from isthmus import run_training
from shared.checkpoint import CheckpointStore
from shared.client.config import TrainerAddressConfig
from shared.client.retry import Retry
from shared.client.trainer import TrainerClient
from shared.config import LinkConfig
from shared.errors import RefusedError
from shared.transport.rpc.status import StatusError
from shared.wire.isthmus.v1 import trainer_pb2 as pb
from tests.support.commands import MLP
from tests.support.running import Listening, edge_config, running_trainer, train_with
from tests.support.wire import RawPeer, held, joining, linked, open_request, until_held

pytestmark = pytest.mark.usefixtures("one_thread")
Code = grpc.StatusCode


@pytest.mark.slow
async def test_a_session_that_nobody_uses_is_freed_and_one_that_is_linked_is_not():
    short = ("server.max_sessions=2", "server.unattached_seconds=3", "server.session_idle_seconds=1")
    async with running_trainer(*short) as server, RawPeer(server.address) as peer:
        async with TrainerClient(TrainerAddressConfig(address=server.address), LinkConfig()) as client:
            call = await linked(client, await peer.open())
            await peer.open()
            await until_held(server, peer, 1)
            await call.end_writing()
            await until_held(server, peer, 0)
        assert (await train_with(server, *MLP, "training.max_steps=2")).summary.steps == 2


async def test_whoever_asks_for_a_session_that_was_freed_is_told_why(monkeypatch):
    """While its files are being removed it can neither be built again out of them nor be missing."""
    removing, forget = asyncio.Event(), SessionStore.forget

    async def forget_late(store, session_id):
        await removing.wait()
        await forget(store, session_id)

    monkeypatch.setattr(SessionStore, "forget", forget_late)
    async with running_trainer("server.unattached_seconds=0.3") as server, RawPeer(server.address) as peer:
        session = await peer.open()
        await until_held(server, peer, 0)
        end = await peer.unary("JoinSession", joining(session))
        assert (end.code, held(server)) == (Code.UNAVAILABLE, 0)
        assert "is being ended just now; try again" in end.details
        removing.set()
        async with asyncio.timeout(60):
            while (end := await peer.unary("JoinSession", joining(session))).code is Code.UNAVAILABLE:
                pass
        assert end.code is Code.NOT_FOUND
        assert f"no session '{session}'; " in end.details
        assert "before it was attached, for 0.3 s (server.unattached_seconds)" in end.details


class Named:
    """As much of a session as its place needs."""

    def __init__(self, session_id):
        self.id, self.run_id = session_id, "run"
        self.attachment = SimpleNamespace(begun=True, lost_at=None)


async def test_a_session_in_use_is_kept_and_its_time_begins_again_after_the_last_use():
    freed = asyncio.Queue()
    sessions = SessionRegistry(3, 0.05, 0.05, freed.put_nowait)
    used, other, closed = (Named(sessions.reserve()) for _ in range(3))
    sessions.add(used)
    with sessions.using(used.id) as one, sessions.using(used.id) as two:
        assert one is two is used
        sessions.add(other)
        sessions.add(closed)
        sessions.remove(closed)
        assert await freed.get() is other
        assert used.id in sessions
    assert await freed.get() is used, "and of one that was closed nothing is said"
    with pytest.raises(StatusError), sessions.using(used.id):
        pass


async def test_a_session_that_is_closed_in_use_is_gone_for_good():
    freed = asyncio.Queue()
    sessions = SessionRegistry(1, 0.01, 0.01, freed.put_nowait)
    session = Named(sessions.reserve())
    sessions.add(session)
    with sessions.using(session.id):
        sessions.remove(session)
    assert len(sessions) == 0
    sessions.add(next_one := Named(sessions.reserve()))
    assert await freed.get() is next_one


async def test_a_session_that_is_closed_while_it_trains_ends_its_training_in_words():
    async with running_trainer() as server, RawPeer(server.address) as peer:
        asked = []

        def close(progress):
            if progress.steps == 5:
                asked.append(asyncio.ensure_future(peer.close_session(server.service.sessions.built[0].id)))

        config = edge_config(*MLP, "training.epochs=100000", f"trainer.address={server.address}")
        with pytest.raises(RefusedError, match=r"refused: session \w+ was closed while it trained"):
            async with asyncio.timeout(60):
                await run_training(config, Listening(close))
        await asked[0]
        assert held(server) == 0
        errors = server.metrics.registry.get_sample_value("isthmus_errors_total", {"code": "NOT_FOUND"})
        assert errors == 1
        assert (await train_with(server, *MLP, "training.max_steps=2")).summary.steps == 2


async def test_a_link_that_was_closed_before_it_did_anything_says_so_too():
    async with running_trainer() as server, RawPeer(server.address) as peer:
        session = await peer.open()
        async with TrainerClient(TrainerAddressConfig(address=server.address), LinkConfig()) as client:
            call = await linked(client, session)
            await peer.close_session(session)
            with pytest.raises(RefusedError, match="was closed while it trained"):
                await call.stream.receive()
        assert await peer.next_step(session) is None


def long_ago(folder):
    for path in folder.rglob("*"):
        os.utime(path, (1.0, 1.0))


async def test_a_session_that_nobody_goes_on_with_is_removed_from_disk_but_none_that_is_in_memory(tmp_path):
    location = f"checkpoints.location={tmp_path}"
    folder = tmp_path / "cloud-trainer"
    async with running_trainer(location) as server, RawPeer(server.address) as peer:
        await server.service.tidy()
        open_one, left_one = await peer.open(), await peer.open()
        await peer.close_session(left_one, resumable=True)
        await server.service.tidy()
        assert {path.name for path in folder.iterdir()} == {open_one, left_one}, "both were written just now"
        long_ago(folder)
        await server.service.tidy()
        assert {path.name for path in folder.iterdir()} == {open_one}


async def test_a_trainer_tidies_when_it_starts_and_again_and_again(monkeypatch):
    times, thrice = [], asyncio.Event()

    async def tidy(_service):
        times.append("tidied")
        if len(times) == 3:
            thrice.set()

    monkeypatch.setattr(TrainerService, "tidy", tidy)
    monkeypatch.setattr("cloud_trainer.server.TIDY_SECONDS", 0.01)
    async with running_trainer():
        await thrice.wait()


async def test_a_call_of_an_earlier_life_does_not_free_the_session_that_has_its_id_now():
    freed = asyncio.Queue()
    sessions = SessionRegistry(2, 0.01, 0.01, freed.put_nowait)
    earlier, later, watch = Named(sessions.reserve()), None, Named(sessions.reserve())
    sessions.add(earlier)
    with sessions.using(earlier.id):
        sessions.remove(earlier)
        later = Named(sessions.reserve(earlier.id))
        sessions.add(later)
        use = sessions.using(later.id)
        use.__enter__()
    sessions.add(watch)
    assert await freed.get() is watch, "which had to wait longer than the earlier life's call would have"
    assert sessions.find(later.id) is later
    use.__exit__(None, None, None)
    assert await freed.get() is later


async def test_a_session_that_is_never_joined_is_freed_soon_and_leaves_nothing_on_disk(tmp_path):
    flags = [f"checkpoints.location={tmp_path}", "server.unattached_seconds=0.3", "server.max_sessions=2"]
    async with running_trainer(*flags) as server, RawPeer(server.address) as peer:
        joined_one = await peer.open_and_join()
        await peer.open()
        await until_held(server, peer, 1)
        assert await peer.next_step(joined_one) == 0, "one that was joined is kept, and with it what may be resumed"
        async with asyncio.timeout(60):
            while {path.name for path in (tmp_path / "cloud-trainer").iterdir()} != {joined_one}:
                await peer.next_step(joined_one)


async def test_an_agent_that_is_lost_while_its_trainer_stops_and_writes_a_checkpoint_harms_nobody(
    tmp_path, monkeypatch
):
    create, writing, go_on = CheckpointStore.save, threading.Event(), threading.Event()

    def slowly(*arguments):
        writing.set()
        assert go_on.wait(60)
        return create(*arguments)

    monkeypatch.setattr(CheckpointStore, "save", slowly)
    async with running_trainer(f"checkpoints.location={tmp_path}") as server, RawPeer(server.address) as peer:
        session = await peer.open()
        async with TrainerClient(TrainerAddressConfig(address=server.address), LinkConfig()) as client:
            await client.join_session(session, 1)
            fence, name = pb.Fence(session_term=1), pb.CheckpointName(lineage=0, step=0)
            request = pb.CheckpointWorkerRequest(session_id=session, fence=fence, name=name)
            part = client.checkpoint_worker(request)
            assert await anext(part) is None, "it is copied"
            assert await asyncio.to_thread(writing.wait, 60)
            stopping = asyncio.create_task(server.service.stop(60.0))
            await part.aclose()
        await until_held(server, peer, 1)
        go_on.set()
        await stopping
        assert list((tmp_path / "cloud-trainer" / session).glob("checkpoint-0-0.json"))


async def test_one_subject_has_no_more_unfinished_sessions_kept_than_it_may(tmp_path):
    flags = [f"checkpoints.location={tmp_path}", "checkpoints.max_sessions_per_subject=2"]
    async with running_trainer(*flags) as server, RawPeer(server.address) as peer:
        first, _ = await peer.open(), await peer.open()
        refused = await peer.unary("OpenSession", open_request().SerializeToString())
        assert refused.code is Code.RESOURCE_EXHAUSTED
        assert "2 unfinished sessions" in refused.details
        assert "(checkpoints.max_sessions_per_subject)" in refused.details
        await peer.close_session(first)
        await peer.open()


async def test_no_session_is_opened_once_the_trainer_is_about_to_stop():
    async with running_trainer() as server, RawPeer(server.address) as peer:
        await server.service.stop(0.0)
        end = await peer.unary("OpenSession", open_request().SerializeToString())
        assert end.code is Code.UNAVAILABLE
        assert end.details == "the trainer is about to stop; try again"


@pytest.mark.slow
async def test_an_agent_that_measures_itself_for_long_keeps_its_session(monkeypatch):
    monkeypatch.setattr("edge_agent.sessions.open_session.REMINDER_SECONDS", 0.1)
    async with (
        running_trainer("server.unattached_seconds=3") as server,
        RawPeer(server.address) as peer,
        TrainerClient(TrainerAddressConfig(address=server.address), LinkConfig()) as client,
    ):
        config = edge_config(*MLP, f"trainer.address={server.address}")
        with AgentThreads.started() as threads:
            session = await open_session({"trainer": client}, Experiment(config), threads, Retry(0))
            async with session.keep_alive():
                await peer.open()
                await until_held(server, peer, 1)
                assert await peer.next_step(session.members["trainer"].session_id) == 0
