"""Peers that mean harm, each beside a training that must not notice: they hold what is theirs and no more.

What one message can do is in test_bad_messages.py and test_fuzz_frames.py; these are about streams, bytes and patience.
"""

import asyncio
import gc
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import grpc
import pytest

from shared.transport.auth.gate import Gate
from shared.transport.stream.packets import Packet, serialize
from shared.wire.isthmus.v1 import trainer_pb2 as pb
from shared.wire.isthmus.v1.link_pb2 import LinkMessage
from shared.wire.isthmus.v1.tensor_pb2 import Frame, Role, TensorHeader
from tests.support.commands import MLP
from tests.support.peers.strangers import path_of
from tests.support.plain import assert_same_bits, plain_state
from tests.support.running import edge_config, running_trainer, train_with
from tests.support.wire import BATCH, BLOCKS, CUT, SERVICE, RawPeer, batch_packets, begin_link, open_request

pytestmark = pytest.mark.usefixtures("one_thread")

Code = grpc.StatusCode
pytestmark = pytest.mark.usefixtures("one_thread")
STEPS = [*MLP, "training.max_steps=20"]
MIB = 1 << 20
TERABYTE = 1 << 40


@pytest.fixture(scope="module")
def expected(one_thread):  # noqa: ARG001 - what it does is what is needed of it
    return plain_state(edge_config(*STEPS))


@asynccontextmanager
async def resident_bytes_grow_less_than(limit_bytes):
    """The memory of this process, in which both sides run; elsewhere than on Linux nothing is measured."""

    def read():
        gc.collect()
        with suppress(OSError):
            lines = Path("/proc/self/status").read_text().splitlines()
            return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))
        return 0

    before = read()
    yield
    assert read() - before < limit_bytes


class Admitted:
    """The methods whose calls have begun: a peer that speaks by hand might not be heard, or not yet."""

    def __init__(self):
        self._methods = set()
        self._news = asyncio.Event()

    def note(self, method):
        self._methods.add(method)
        self._news.set()

    async def wait_for(self, method):
        while path_of(method) not in self._methods:
            self._news.clear()
            await self._news.wait()


@pytest.fixture
def admitted(monkeypatch):
    admitted = Admitted()
    behind = Gate.intercept_service

    async def noting(self, continuation, details):
        handler = await behind(self, continuation, details)

        async def call(requests, context):
            admitted.note(str(details.method))
            await handler.stream_stream(requests, context)

        return handler and grpc.stream_stream_rpc_method_handler(
            call, handler.request_deserializer, handler.response_serializer
        )

    monkeypatch.setattr(Gate, "intercept_service", noting)
    return admitted


async def trains_exactly(server, expected):
    result = await train_with(server, *STEPS)
    assert_same_bits(expected, result.module.state_dict())


class HttpPeer:
    """Speaks HTTP/2 by hand, so that it can stop in the middle of anything."""

    def __init__(self, address):
        self._address = address

    async def __aenter__(self):
        host, port = self._address.split(":")
        self._reader, self._writer = await asyncio.open_connection(host, int(port))
        self._writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + self._frame(4, 0, 0, b""))
        return self

    async def __aexit__(self, *_):
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()

    async def begin(self, stream, method):
        """The headers of a gRPC call, as literals without indexing or compression."""
        headers = {
            ":method": "POST",
            ":scheme": "http",
            ":path": f"/{SERVICE}/{method}",
            ":authority": "x",
            "content-type": "application/grpc",
            "te": "trailers",
        }
        block = b"".join(
            bytes([0, len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
            for name, value in headers.items()
        )
        await self.send(self._frame(1, 4, stream, block))

    async def data(self, stream, payload):
        await self.send(self._frame(0, 0, stream, payload))

    async def send(self, data):
        self._writer.write(data)
        await self._writer.drain()

    @staticmethod
    def _frame(kind, flags, stream, payload):
        return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def message_prefix(length):
    return b"\x00" + length.to_bytes(4, "big")


async def test_a_thousand_streams(expected):
    async with running_trainer() as server, grpc.aio.insecure_channel(server.address) as channel:
        async with resident_bytes_grow_less_than(256 * MIB):
            streams = [channel.stream_stream(path_of("Link"))() for _ in range(1000)]
            refused = 0
            async with asyncio.timeout(60):
                for ended in asyncio.as_completed([stream.code() for stream in streams]):
                    # HTTP/2 itself refuses what comes before its limit of streams was heard of.
                    assert await ended in (Code.RESOURCE_EXHAUSTED, Code.UNAVAILABLE)
                    refused += 1
                    if refused == len(streams) - 64:  # server.max_calls_at_once; this host has no place left
                        break
            for stream in streams:
                stream.cancel()
        await trains_exactly(server, expected)


async def test_a_thousand_streams_of_another_subject_do_not_stop_a_training(expected, tmp_path):
    from tests.support.peers.strangers import Doorkeeper

    door = Doorkeeper(tmp_path)
    access = [
        f"tls.ca={tmp_path / 'ca.pem'}",
        f"tls.certificate={tmp_path / 'edge.pem'}",
        f"tls.key={tmp_path / 'edge.key'}",
    ]
    async with running_trainer(*door.flags) as server, door.friend("theirs").channel(server.address) as channel:
        metadata = (("authorization", f"Bearer {door.tokens['theirs']}"),)
        streams = [channel.stream_stream(path_of("Link"))(metadata=metadata) for _ in range(1000)]
        async with asyncio.timeout(60):
            await asyncio.wait(
                [asyncio.ensure_future(stream.code()) for stream in streams], return_when="FIRST_COMPLETED"
            )
        token = tmp_path / "token"
        token.touch(mode=0o600)
        token.write_text(door.tokens["ours"])
        result = await train_with(server, *STEPS, *access, f"trainer.token_file={token}")
        assert_same_bits(expected, result.module.state_dict())
        for stream in streams:
            stream.cancel()


@pytest.mark.first_case
@pytest.mark.parametrize("method", ["Link", "UploadBlock", "OpenSession"])
async def test_a_message_that_comes_byte_by_byte(expected, admitted, method):
    async with running_trainer() as server, HttpPeer(server.address) as slow:
        await slow.begin(1, method)
        stopping = asyncio.Event()

        async def trickle():
            for byte in message_prefix(1 * MIB):
                await slow.data(1, bytes([byte]))
            while not stopping.is_set():
                await slow.data(1, b"x")
                await asyncio.sleep(0.05)

        trickling = asyncio.create_task(trickle())
        async with asyncio.timeout(60):
            await admitted.wait_for(method)
        await trains_exactly(server, expected)
        assert not trickling.done(), "the slow one is still there, and was in nobody's way"
        stopping.set()
        await trickling


async def test_headers_that_never_end(expected):
    async with running_trainer() as server, HttpPeer(server.address) as slow:
        await slow.send(b"\x00\x40\x00\x01\x00\x00\x00\x00\x01")  # HEADERS of 16 KiB, and nothing of them
        await trains_exactly(server, expected)


async def test_who_connects_and_says_nothing(expected):
    async with running_trainer() as server:
        host, port = server.address.split(":")
        silent = [await asyncio.open_connection(host, int(port)) for _ in range(100)]
        await trains_exactly(server, expected)
        for _, writer in silent:
            writer.close()


async def test_who_never_reads(expected, admitted):
    """A download of more than any window holds, and a link whose gradients are not read."""
    wide = pb.Model(factory="shared.model.zoo:mlp", kwargs_json='{"hidden": 2048}')
    async with running_trainer() as server, RawPeer(server.address) as peer:
        big, small = await peer.open(model=wide), await peer.open_and_join()
        async with resident_bytes_grow_less_than(256 * MIB), HttpPeer(server.address) as deaf:
            await deaf.begin(1, "Link")
            for data in (*begin_link(small), *map(serialize, batch_packets(0))):
                await deaf.data(1, message_prefix(len(data)) + data)
            async with asyncio.timeout(60):
                await admitted.wait_for("Link")
            await peer.reach(small, 1)  # its step was computed, although the gradient is not read
            # Only now: the block fills the window of the connection, and a link that is not open yet could not be opened.
            await deaf.begin(3, "DownloadBlock")
            asked = pb.DownloadBlockRequest(session_id=big, block=1).SerializeToString()
            await deaf.data(3, message_prefix(len(asked)) + asked)
            async with asyncio.timeout(60):
                await admitted.wait_for("DownloadBlock")
            await trains_exactly(server, expected)
        async with asyncio.timeout(60):  # it is noticed that the peer has gone
            while await peer.attached(small):
                pass
        for session in (big, small):
            await peer.close_session(session)


@pytest.mark.first_case
@pytest.mark.parametrize("role", [Role.ROLE_FEATURE, Role.ROLE_LABEL, Role.ROLE_BLOCK, Role.ROLE_FROZEN])
@pytest.mark.parametrize("what", ["training", "evaluation", "UploadBlock"])
async def test_a_terabyte_is_refused_at_its_first_byte(expected, what, role):
    async with running_trainer() as server, RawPeer(server.address) as peer:
        session = await peer.open() if what == "UploadBlock" else await peer.open_and_join()
        header = TensorHeader(codec="raw", dtype=7, shape=[TERABYTE], strides=[1], encoded_bytes=TERABYTE)
        if role is Role.ROLE_FEATURE:
            header = TensorHeader(codec="fp32", dtype=1, shape=[8, TERABYTE // 32], strides=[TERABYTE // 32, 1])
            header.encoded_bytes = TERABYTE
        block = {Role.ROLE_FEATURE: CUT, Role.ROLE_LABEL: BLOCKS}.get(role, 1)
        frame = Frame(role=role, block=block, tensor=header)
        async with resident_bytes_grow_less_than(128 * MIB):
            if what == "UploadBlock":
                announced = pb.UploadBlockRequest(session_id=session, frame=frame)
                end = await peer.streamed(what, [serialize(Packet(announced, b"first"))])
            else:
                frame.batch_samples = BATCH
                messages = [serialize(Packet(LinkMessage(frames=[frame]), b"first"))]
                if role is Role.ROLE_FEATURE:  # a feature comes after its labels
                    messages = [serialize(p) for p in batch_packets(0) if p.message.frames[0].role != role] + messages
                async with AsyncExitStack() as evaluating:
                    if number := int(what == "evaluation"):
                        await evaluating.enter_async_context(peer.evaluating(session, number))
                    end = await peer.linked(session, messages, evaluation=number)
            assert end.code is Code.INVALID_ARGUMENT, end
        await peer.close_session(session)
        await trains_exactly(server, expected)


async def test_what_opens_a_session_is_no_larger_than_what_is_worth_keeping():
    async with running_trainer() as server, RawPeer(server.address) as peer:
        names = ["x" * 1000] * 300
        end = await peer.unary("OpenSession", open_request(block_names=names).SerializeToString())
        assert end.code is Code.INVALID_ARGUMENT
        assert server.metrics.registry.get_sample_value("isthmus_sessions") == 0
