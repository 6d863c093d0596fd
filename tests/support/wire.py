"""A peer that sends the very bytes it is told to, and the messages that a right agent would send, to be damaged."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Self

import grpc
import torch

from cloud_trainer.server import TrainerServer
from shared.client.link_call import LinkCall, StreamListener
from shared.client.trainer import TrainerClient
from shared.codec import codec_by_name
from shared.placement import AGENT
from shared.registry import OptimizerConfig
from shared.tensor_wire import to_wire
from shared.training.recipe import Recipe, ScheduleConfig
from shared.transport.rpc.call_status import CallStatus
from shared.transport.stream.framing import TensorKey, block_key, chunks
from shared.transport.stream.packets import Packet, serialize
from shared.version import PROTOCOL_VERSION
from shared.wire.isthmus.v1 import trainer_pb2 as pb
from shared.wire.isthmus.v1.link_pb2 import Awaited, LinkMessage, LinkOpening, LinkPosition
from shared.wire.isthmus.v1.tensor_pb2 import DataType, Role, TensorHeader

SERVICE = "isthmus.v1.TrainerService"
BATCH, FEATURES, CLASSES, BLOCKS, CUT = 8, 64, 10, 3, 1
"""The sizes of the session that `open_request` asks for: a multilayer perceptron of three blocks, cut after the first."""
TRAINER = "trainer"
"""The worker that the trainer is."""


REFUSALS = {
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.DATA_LOSS,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.ABORTED,
}
"""Statuses of a call that refuse an impossible request."""
FENCE = pb.Fence(session_term=2**63)
"""The fence of an agent that joined after all others."""


@dataclass(frozen=True, slots=True)
class End:
    """The end of a call: its status, its sentence, and the answers before."""

    code: grpc.StatusCode
    details: str
    responses: list[bytes]


class RawPeer:
    """One connection to a trainer. No call lasts longer than `timeout_seconds`: a hang is DEADLINE_EXCEEDED."""

    def __init__(self, address: str, timeout_seconds: float = 60.0, token: str | None = None) -> None:
        options = [
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.max_send_message_length", -1),
            ("grpc.max_receive_message_length", -1),
        ]
        self._channel: Any = grpc.aio.insecure_channel(address, options=options)
        self._timeout_seconds = timeout_seconds
        self._metadata = [] if token is None else [("authorization", f"Bearer {token}")]

    async def __aenter__(self) -> Self:
        await self._channel.channel_ready()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._channel.close()

    async def unary(self, method: str, data: bytes) -> End:
        """One message up."""
        return await self.streamed(method, [data])

    async def streamed(self, method: str, messages: Iterable[bytes], *, ends: bool = True) -> End:
        """Messages up, then the end of the stream; or, where it does not end, whatever the trainer ends it with."""
        may_end = asyncio.Event()
        if ends:
            may_end.set()

        async def upward() -> AsyncIterator[bytes]:
            for message in messages:
                yield message
            await may_end.wait()

        path = f"/{SERVICE}/{method}"
        try:
            return await self._end(
                self._channel.stream_stream(path)(upward(), timeout=self._timeout_seconds, metadata=self._metadata)
            )
        finally:
            may_end.set()

    async def linked(
        self, session: str, messages: Iterable[bytes], *, term: int = 1, evaluation: int = 0, position: bytes = b""
    ) -> End:
        """A link of the agent: what it begins with, these messages, and its end. position: see `positioned`."""
        begun = begin_link(session, term=term, evaluation=evaluation, position=position)
        return await self.streamed("Link", [*begun, *messages])

    async def open(self, **changes: Any) -> str:
        """The id of a new session."""
        end = await self.unary("OpenSession", open_request(**changes).SerializeToString())
        assert end.code is grpc.StatusCode.OK, end
        return pb.OpenSessionResponse.FromString(end.responses[0]).session_id

    async def join(self, session: str, term: int = 1) -> pb.JoinSessionResponse:
        """Become the agent of a session."""
        end = await self.unary("JoinSession", joining(session, term))
        assert end.code is grpc.StatusCode.OK, end
        return pb.JoinSessionResponse.FromString(end.responses[0])

    async def open_and_join(self, **changes: Any) -> str:
        """The id of a new session of this agent, which may be linked now."""
        session = await self.open(**changes)
        await self.join(session)
        return session

    @asynccontextmanager
    async def evaluating(self, session: str, number: int = 1, term: int = 1) -> AsyncIterator[None]:
        """The trainer takes part in an evaluation."""
        request = pb.JoinEvaluationRequest(
            session_id=session, fence=pb.Fence(session_term=term), evaluation=number
        ).SerializeToString()
        call = self._channel.unary_stream(f"/{SERVICE}/JoinEvaluation")(request, timeout=self._timeout_seconds)
        assert await call.read() is not grpc.aio.EOF
        try:
            yield
        finally:
            call.cancel()

    async def close_session(self, session: str, *, resumable: bool = False) -> None:
        """Close it; nothing happens when it is closed."""
        request = pb.CloseSessionRequest(session_id=session, fence=FENCE, resumable=resumable)
        await self.unary("CloseSession", request.SerializeToString())

    async def next_step(self, session: str) -> int | None:
        """Return the step that the session waits for; None when there is no such session."""
        end = await self.unary("GetSession", pb.GetSessionRequest(session_id=session).SerializeToString())
        if end.code is grpc.StatusCode.NOT_FOUND:
            return None
        return pb.GetSessionResponse.FromString(end.responses[0]).next_step

    async def reach(self, session: str, step: int) -> None:
        """Wait until a session waits for this step."""
        async with asyncio.timeout(60):
            while await self.next_step(session) != step:
                pass

    async def attached(self, session: str) -> bool:
        """Tell whether any link of a session is open."""
        end = await self.unary("GetSession", pb.GetSessionRequest(session_id=session).SerializeToString())
        return pb.GetSessionResponse.FromString(end.responses[0]).attached

    async def _end(self, call: Any) -> End:
        responses: list[bytes] = []
        ending = CallStatus(call)
        try:
            async for response in call:
                responses.append(response)
        except grpc.aio.AioRpcError:
            failure = await ending.failure()
            assert failure is not None
            return End(failure.code(), failure.details() or "", responses)
        return End(grpc.StatusCode.OK, "", responses)


def placed(
    *,
    cut: int = CUT,
    staleness: int = 0,
    codec: str = "fp32",
    downlink_codec: str = "fp32",
    version: int = 0,
    **changes: Any,
) -> pb.Placement:
    """Two workers on one cut, whether that can be or not; `changes` replace keys of the document."""
    parts = [(AGENT, 0, cut), (TRAINER, cut, BLOCKS)]
    route = {"from": AGENT, "to": TRAINER, "cargo": "feature", "codec": codec}
    back = {"from": TRAINER, "to": AGENT, "cargo": "error_gradient", "codec": downlink_codec}
    document: dict[str, Any] = {
        "schema": "isthmus.placement/v1",
        "workers": [AGENT, TRAINER],
        "tiles": [
            {"worker": worker, "blocks": [first, stop], "samples": [0, BATCH]}
            for worker, first, stop in parts
            if first < stop
        ],
        "staleness": staleness,
        "codecs": [route, back],
    }
    return pb.Placement(version=version, document_json=json.dumps(document | changes))


_PLACED = ("cut", "staleness", "codec", "downlink_codec", "version")


def open_request(**changes: Any) -> pb.OpenSessionRequest:
    """Build the request of a right agent to open a session; `changes` replace fields, and what `placed` takes."""
    recipe = Recipe(
        optimizer=OptimizerConfig(learning_rate=0.05),
        schedule=ScheduleConfig(),
        loss=changes.pop("loss", "cross_entropy"),
        seed=0,
        steps_per_epoch=10,
        total_steps=10,
    )
    fields: dict[str, Any] = {
        "protocol_version": PROTOCOL_VERSION,
        "model": pb.Model(factory="shared.model.zoo:mlp", kwargs_json="{}"),
        "inputs": [TensorHeader(shape=[BATCH, FEATURES], dtype=DataType.DATA_TYPE_FLOAT32)],
        "recipe_json": recipe.model_dump_json(),
        "placement": placed(**{name: changes.pop(name) for name in _PLACED if name in changes}),
        "worker": TRAINER,
        "backward": "replay",
        "feedback": "batch",
        "block_names": ["0", "1", "2"],
    }
    return pb.OpenSessionRequest(**{**fields, **changes})


def held(server: TrainerServer) -> float | None:
    """Sessions that this trainer says it holds."""
    return server.metrics.registry.get_sample_value("isthmus_sessions")


async def until_held(server: TrainerServer, peer: RawPeer, count: int) -> None:
    """Wait until a trainer holds as many sessions as this."""
    async with asyncio.timeout(60):
        while held(server) != count:
            await peer.next_step("of no session")


def joining(session: str, term: int = 1, version: int = PROTOCOL_VERSION) -> bytes:
    """Build the message of an agent that asks to have a session."""
    return pb.JoinSessionRequest(session_id=session, session_term=term, protocol_version=version).SerializeToString()


def opening(
    session: str, term: int = 1, version: int = PROTOCOL_VERSION, worker: str = AGENT, evaluation: int = 0
) -> bytes:
    """The first message of a link."""
    told = LinkOpening(
        protocol_version=version, session_id=session, session_term=term, worker=worker, evaluation=evaluation
    )
    return serialize(Packet(LinkMessage(opening=told)))


async def linked(client: TrainerClient, session: str) -> LinkCall:
    """Join a session and link to it as its agent would."""
    await client.join_session(session, 1)
    opening = LinkOpening(protocol_version=PROTOCOL_VERSION, session_id=session, session_term=1, worker=AGENT)
    call, _ = await client.link(opening, StreamListener(lambda *_: None, lambda: None, lambda *_: None))
    awaited = [Awaited(role=Role.ROLE_ERROR_GRADIENT, block=CUT)]
    await call.stream.write(LinkMessage(position=LinkPosition(awaited=awaited)))
    await call.stream.receive()
    return call


def positioned(next_step: int = 0, version: int = 0, dones: int = 0, cut: int = CUT) -> bytes:
    """The second message of an agent's link in training: the step whose error gradient it waits for."""
    awaited = Awaited(role=Role.ROLE_ERROR_GRADIENT, block=cut, next_step=next_step)
    told = LinkPosition(placement_version=version, awaited=[awaited], dones_received=dones)
    return serialize(Packet(LinkMessage(position=told)))


EVALUATING = serialize(Packet(LinkMessage(position=LinkPosition())))
"""The same in an evaluation, in which nothing comes back."""


def begin_link(session: str, *, term: int = 1, evaluation: int = 0, position: bytes = b"") -> list[bytes]:
    """Build the first messages of a link of the agent. position: where it stands, if not at its begin."""
    position = position or (EVALUATING if evaluation else positioned())
    return [opening(session, term, evaluation=evaluation), position]


def batch_packets(
    step: int, *, codec: str = "fp32", labels: Sequence[int] = (), chunk_bytes: int = 1024
) -> list[Packet[LinkMessage]]:
    """A batch as it goes up, labels and feature in chunks.

    labels: one for each of the BATCH samples; left out, some that fit.
    """
    generator = torch.Generator().manual_seed(step)
    feature = torch.rand(BATCH, FEATURES, generator=generator)
    classes = torch.tensor(labels) if labels else torch.arange(BATCH) % CLASSES
    parts = [
        (codec_by_name("raw").encode(classes), TensorKey(step, Role.ROLE_LABEL, BLOCKS)),
        (codec_by_name(codec).encode(feature), TensorKey(step, Role.ROLE_FEATURE, CUT)),
    ]
    return [
        Packet(LinkMessage(frames=[frame]), bytes(payload))
        for encoded, key in parts
        for frame, payload in chunks(to_wire(encoded, key, 0, BATCH), chunk_bytes)
    ]


def block_packets(session: str, block: int, data: bytes) -> list[Packet[Any]]:
    """The state of a block as it is uploaded."""
    encoded = codec_by_name("raw").encode(torch.frombuffer(bytearray(data), dtype=torch.uint8))
    return [
        Packet(pb.UploadBlockRequest(session_id=session, frame=frame, fence=FENCE), bytes(payload))
        for frame, payload in chunks(to_wire(encoded, block_key(block), 0), 8192)
    ]
