"""A trainer that falls silent ends the agent in time, and one that is slow for a good reason does not."""

import asyncio

import grpc
import pytest

from edge_agent.profiling.workers.pair_profile import profile_pair
from isthmus import run_training
from shared.client.config import TrainerAddressConfig
from shared.client.connection import TrainerConnection
from shared.client.trainer import TrainerClient
from shared.config import LinkConfig
from shared.errors import UnreachableError
from shared.transport.stream.packets import Packet, serialize
from shared.wire.isthmus.v1 import trainer_pb2 as pb
from shared.wire.isthmus.v1.tensor_pb2 import Frame, Role, TensorHeader
from tests.support.peers.trainers import FACTORY, FLAGS, LINKED, linking, trainer_with
from tests.support.running import GIVE_UP_AT_ONCE, edge_config, running_trainer, train_with

pytestmark = pytest.mark.usefixtures("one_thread")


def silent(kind):
    """A method that takes what comes and says nothing, until its caller gives up."""

    async def say_nothing(requests, _context):
        if kind in (grpc.stream_unary_rpc_method_handler, grpc.stream_stream_rpc_method_handler):
            async for _ in requests:
                pass
        await asyncio.Event().wait()

    return kind(say_nothing)


@pytest.fixture
def only_limited(monkeypatch):
    """Says which call alone is given up after trainer.call_timeout_seconds: on a busy machine any may take so long."""
    idle_timeout = TrainerConnection.idle_timeout

    def choose(method):
        monkeypatch.setattr(
            TrainerConnection,
            "idle_timeout",
            lambda self, call, repeats=1, **more: idle_timeout(
                self, call, repeats if call == method else 100 * repeats, **more
            ),
        )

    return choose


@pytest.mark.first_case
@pytest.mark.parametrize(
    ("method", "kind", "seconds"),
    [
        ("OpenSession", grpc.unary_unary_rpc_method_handler, "1"),
        ("UploadBlock", grpc.stream_unary_rpc_method_handler, "1"),
        ("DownloadBlock", grpc.unary_stream_rpc_method_handler, "1"),
        ("JoinSession", grpc.unary_unary_rpc_method_handler, "1"),
        ("JoinEvaluation", grpc.unary_stream_rpc_method_handler, "1"),
        ("Link", grpc.stream_stream_rpc_method_handler, "1"),
        ("MeasureStage", grpc.unary_unary_rpc_method_handler, "3"),
    ],
)
async def test_a_trainer_that_never_answers(monkeypatch, only_limited, tmp_path, method, kind, seconds):
    only_limited(method)
    if method == "UploadBlock":
        monkeypatch.setattr("cloud_trainer.sessions.blocks.SessionBlocks.digests", lambda _self: [0, 0, 0])
    test = f"data.test={{factory={FACTORY}}}"
    flags = [*FLAGS, GIVE_UP_AT_ONCE, test, "trainer.call_timeout_seconds=1"]
    flags += ["training.max_steps=2", "link.chunk_bytes=1024"]
    async with trainer_with(method, silent(kind)) as address, asyncio.timeout(200):
        config = edge_config(*flags, f"trainer.address={address}")
        running = (
            profile_pair(config, tmp_path / "profile.json", 9) if method == "MeasureStage" else run_training(config)
        )
        says = rf"{address} did not answer for {seconds} s \({method}, trainer.call_timeout_seconds\)"
        with pytest.raises(UnreachableError, match=says):
            await running


@pytest.mark.first_case
@pytest.mark.parametrize("staleness", [0, 3])
async def test_a_trainer_that_falls_silent_while_it_trains(only_limited, staleness):
    only_limited("Link")
    flags = [*FLAGS, GIVE_UP_AT_ONCE, "trainer.call_timeout_seconds=0.5"]
    flags += ["training.max_steps=9", f"deployment.staleness={staleness}"]
    handler = linking(*LINKED, after_steps=1, then_reads=1_000_000)
    async with trainer_with("Link", handler) as address, asyncio.timeout(200):
        says = rf"{address} did not answer for 0.5 s \(Link, trainer.call_timeout_seconds\)"
        with pytest.raises(UnreachableError, match=says):
            await run_training(edge_config(*flags, f"trainer.address={address}"))


async def test_a_call_that_is_left_unanswered_counts_until_its_method_is_answered():
    answers = asyncio.Event()

    async def get_session(_request, _context):
        await answers.wait()
        return pb.GetSessionResponse().SerializeToString()

    async with trainer_with("GetSession", grpc.unary_unary_rpc_method_handler(get_session)) as address:
        trainer = TrainerAddressConfig(address=address, call_timeout_seconds=0.2)
        async with TrainerClient(trainer, LinkConfig()) as client:
            assert client.unanswered_since is None
            with pytest.raises(UnreachableError, match="did not answer"):
                await client.get_session("any")
            since = client.unanswered_since
            assert since is not None
            await client.check_serving()
            await client.probe("shared.model.zoo:mlp")
            assert client.unanswered_since == since, "other answers do not count"
            answers.set()
            await client.get_session("any")
            assert client.unanswered_since is None


@pytest.mark.slow
async def test_a_slow_edge_does_not_blame_the_trainer(only_limited):
    only_limited("Link")
    slow = 'data.train={factory="tests.support.samples:Slow", kwargs={seconds=2.5}}'
    async with running_trainer() as server:
        flags = [*FLAGS, slow, "data.batch_size=4", "trainer.call_timeout_seconds=2"]
        assert (await train_with(server, *flags)).summary.steps == 3


@pytest.mark.slow
async def test_a_transfer_that_goes_on_may_take_longer_than_an_answer():
    chunks, limit_seconds = 25, 2.0

    async def download(request, context):
        block = pb.DownloadBlockRequest.FromString(request).block
        header = TensorHeader(codec="raw", dtype=7, shape=[chunks], strides=[1], encoded_bytes=chunks)
        for offset in range(chunks):
            await asyncio.sleep(1.25 * limit_seconds / chunks)
            frame = Frame(block=block, role=Role.ROLE_BLOCK, offset=offset, tensor=None if offset else header)
            await context.write(serialize(Packet(pb.DownloadBlockResponse(frame=frame), b"x")))

    async with trainer_with("DownloadBlock", grpc.unary_stream_rpc_method_handler(download)) as address:
        trainer = TrainerAddressConfig(address=address, call_timeout_seconds=limit_seconds)
        async with TrainerClient(trainer, LinkConfig()) as client:
            assert await client.download_block("any", 1, 100, weights_only=True) == b"x" * chunks


@pytest.mark.slow
async def test_what_the_edge_needs_for_an_evaluation_is_not_the_trainers_silence():
    async def join(_request, context):
        await context.write(pb.JoinEvaluationResponse().SerializeToString())
        await asyncio.Event().wait()

    async with trainer_with("JoinEvaluation", grpc.unary_stream_rpc_method_handler(join)) as address:
        trainer = TrainerAddressConfig(address=address, call_timeout_seconds=1.0)
        async with (
            TrainerClient(trainer, LinkConfig()) as client,
            client.evaluation(pb.JoinEvaluationRequest(session_id="any")),
        ):
            await asyncio.sleep(2.0)
