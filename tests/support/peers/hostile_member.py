"""A member of a group that means harm: a real agent, behind a relay that changes one of the gradients that it gives."""

from collections.abc import Callable
from typing import Any

from shared.transport.stream.framing import payloads
from shared.wire.isthmus.v1.tensor_pb2 import Frame, Role
from tests.support.peers.lying_trainer import Lie, bytes_of, message_of

Gradient = tuple[Frame, bytearray]
"""One tensor of the gradient of a block, whole, and its bytes."""
Change = Callable[[Gradient], list[Gradient]]
"""Given a tensor, what is sent in its place."""


def giving(change: Change, step: int = 1) -> Lie:
    """Change the first tensor of the gradients of one step, once."""
    is_left = True

    def lie(method: str, data: bytes) -> bytes:
        nonlocal is_left
        if method != "Link" or not is_left:
            return data
        message: Any = message_of(method, data, request=True)
        if not message.frames:
            return data
        gradients = [(frame, bytearray(payload)) for frame, payload in payloads(list(message.frames), message.payload)]
        at = next((at for at, (frame, _) in enumerate(gradients) if _is_whole_gradient(frame, step)), None)
        if at is None:
            return data
        is_left = False
        gradients[at : at + 1] = change(gradients[at])
        return _sent(message, gradients)

    return lie


def _is_whole_gradient(frame: Frame, step: int) -> bool:
    is_there = frame.HasField("tensor") and not frame.tensor.is_absent
    return is_there and frame.role == Role.ROLE_WEIGHT_GRADIENT and frame.step == step


def _sent(message: Any, gradients: list[Gradient]) -> bytes:
    frames = [Frame.FromString(frame.SerializeToString()) for frame, _ in gradients]
    for frame, (_, payload) in zip(frames[:-1], gradients, strict=False):
        frame.payload_bytes = len(payload)
    frames[-1].payload_bytes = 0
    message.ClearField("frames")
    message.frames.extend(frames)
    message.payload = b"".join(bytes(payload) for _, payload in gradients)
    return bytes_of(message)
