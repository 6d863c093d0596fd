"""A peer that sends the very bytes it is told to, and the messages that a right edge would send, to be damaged."""

from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import grpc
import torch

from shared.codec import codec_by_name
from shared.tensor_wire import to_wire
from shared.training.optimizers import OptimizerConfig
from shared.training.recipe import Recipe, ScheduleConfig
from shared.transport.rpc.call_status import CallStatus
from shared.transport.stream.framing import TensorKey, block_key, chunks
from shared.transport.stream.packets import Packet, serialize
from shared.version import PROTOCOL_VERSION
from shared.wire.isthmus.v1 import trainer_pb2 as pb
from shared.wire.isthmus.v1.tensor_pb2 import DataType, Role, TensorHeader

SERVICE = "isthmus.v1.TrainerService"
BATCH, FEATURES, CLASSES, CUT = 8, 64, 10, 1
"""The sizes of the session that `open_request` asks for: a multilayer perceptron of three blocks, cut after the first."""


REFUSALS = {
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.DATA_LOSS,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
}
"""How a call ends that says what cannot be."""
FENCE = pb.Fence(session_term=2**63)
"""The fence of an edge that attached after all others."""


@dataclass(frozen=True, slots=True)
class End:
    """How a call ended: its status, its sentence, and what had come back before."""

    code: grpc.StatusCode
    details: str
    responses: list[bytes]


class RawPeer:
    """One connection to a trainer. No call lasts longer than `timeout_seconds`: a hang is DEADLINE_EXCEEDED."""

    def __init__(self, address: str, timeout_seconds: float = 60.0) -> None:
        options = [
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.max_send_message_length", -1),
            ("grpc.max_receive_message_length", -1),
        ]
        self._channel: Any = grpc.aio.insecure_channel(address, options=options)
        self._timeout_seconds = timeout_seconds

    async def __aenter__(self) -> Self:
        await self._channel.channel_ready()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._channel.close()

    async def unary(self, method: str, data: bytes) -> End:
        """One message up, one down; or many down, where the call answers so."""
        if method == "DownloadBlock":
            call = self._channel.unary_stream(f"/{SERVICE}/{method}")(data, timeout=self._timeout_seconds)
            return await self._end(call)
        return await self._end(self._channel.unary_unary(f"/{SERVICE}/{method}")(data, timeout=self._timeout_seconds))

    async def streamed(self, method: str, messages: Iterable[bytes]) -> End:
        """Messages up, then the end of the stream."""

        async def upward() -> AsyncIterator[bytes]:
            for message in messages:
                yield message

        if method == "Train":
            call = self._channel.stream_stream(f"/{SERVICE}/{method}")(upward(), timeout=self._timeout_seconds)
            return await self._end(call)
        return await self._end(
            self._channel.stream_unary(f"/{SERVICE}/{method}")(upward(), timeout=self._timeout_seconds)
        )

    async def open(self, **changes: Any) -> str:
        """The id of a new session."""
        end = await self.unary("OpenSession", open_request(**changes).SerializeToString())
        assert end.code is grpc.StatusCode.OK, end
        return pb.OpenSessionResponse.FromString(end.responses[0]).session_id

    async def close_session(self, session: str, *, resumable: bool = False) -> None:
        """Close it; nothing happens when it is closed."""
        request = pb.CloseSessionRequest(session_id=session, fence=FENCE, resumable=resumable)
        await self.unary("CloseSession", request.SerializeToString())

    async def next_step(self, session: str) -> int | None:
        """What the session waits for; None when there is no such session."""
        end = await self.unary("GetSession", pb.GetSessionRequest(session_id=session).SerializeToString())
        if end.code is grpc.StatusCode.NOT_FOUND:
            return None
        return pb.GetSessionResponse.FromString(end.responses[0]).next_step

    async def attached(self, session: str) -> bool:
        """Whether a training stream is attached to a session."""
        end = await self.unary("GetSession", pb.GetSessionRequest(session_id=session).SerializeToString())
        return pb.GetSessionResponse.FromString(end.responses[0]).attached

    async def _end(self, call: Any) -> End:
        responses: list[bytes] = []
        ending = CallStatus(call)
        try:
            if isinstance(call, grpc.aio.StreamStreamCall | grpc.aio.UnaryStreamCall):
                async for response in call:
                    responses.append(response)
            else:
                responses.append(await call)
        except grpc.aio.AioRpcError:
            failure = await ending.failure()
            assert failure is not None
            return End(failure.code(), failure.details() or "", responses)
        return End(grpc.StatusCode.OK, "", responses)


def open_request(**changes: Any) -> pb.OpenSessionRequest:
    """What a right edge sends to open a session; `changes` replace fields, those of the deployment by its own names."""
    recipe = Recipe(
        optimizer=OptimizerConfig(learning_rate=0.05),
        schedule=ScheduleConfig(),
        loss=changes.pop("loss", "cross_entropy"),
        seed=0,
        steps_per_epoch=10,
        total_steps=10,
    )
    deployment: dict[str, Any] = {"cut": CUT, "staleness": 0, "codec": "fp32", "downlink_codec": "fp32", "version": 0}
    deployment |= {name: changes.pop(name) for name in list(changes) if name in deployment}
    fields: dict[str, Any] = {
        "protocol_version": PROTOCOL_VERSION,
        "model": pb.Model(factory="shared.model.zoo:mlp", kwargs_json="{}"),
        "example": TensorHeader(shape=[BATCH, FEATURES], dtype=DataType.DATA_TYPE_FLOAT32),
        "recipe_json": recipe.model_dump_json(),
        "deployment": pb.Deployment(**deployment),
        "block_names": ["0", "1", "2"],
    }
    return pb.OpenSessionRequest(**{**fields, **changes})


def attach(session: str, next_step: int = 0, term: int = 1, version: int = PROTOCOL_VERSION) -> bytes:
    """The first message of a training stream."""
    position = pb.Position(gradient_step=next_step, report_step=next_step)
    attaching = pb.Attach(session_id=session, session_term=term, position=position, protocol_version=version)
    return serialize(Packet(pb.TrainRequest(attach=attaching)))


def batch_packets(
    message: type,
    step: int,
    *,
    codec: str = "fp32",
    labels: Sequence[int] = (),
    chunk_bytes: int = 1024,
    **fields: Any,
) -> list[Packet[Any]]:
    """A batch as it goes up, labels and feature in chunks, each in a `message`; `fields` stand in every message.

    step: from 0, also of the batches of an evaluation.
    labels: one for each of the BATCH samples; left out, some that fit.
    """
    generator = torch.Generator().manual_seed(step)
    feature = torch.rand(BATCH, FEATURES, generator=generator)
    classes = torch.tensor(labels) if labels else torch.arange(BATCH) % CLASSES
    place = {"step": 0, "batch": step + 1} if message is pb.EvaluateRequest else {"step": step}
    parts = [
        (codec_by_name("raw").encode(classes), TensorKey(role=Role.ROLE_LABEL, **place)),
        (codec_by_name(codec).encode(feature), TensorKey(role=Role.ROLE_FEATURE, block=CUT, **place)),
    ]
    return [
        Packet(message(frame=frame, **fields), bytes(payload))
        for encoded, key in parts
        for frame, payload in chunks(to_wire(encoded, key, 0), chunk_bytes)
    ]


def block_packets(session: str, block: int, data: bytes) -> list[Packet[Any]]:
    """The state of a block as it is uploaded."""
    encoded = codec_by_name("raw").encode(torch.frombuffer(bytearray(data), dtype=torch.uint8))
    return [
        Packet(pb.UploadBlockRequest(session_id=session, frame=frame, fence=FENCE), bytes(payload))
        for frame, payload in chunks(to_wire(encoded, block_key(block), 0), 8192)
    ]
