"""Evaluation through the cut: features and labels in, totals out; no weights and no statistics change."""

from collections.abc import AsyncIterator, Callable

from cloud_trainer.rpc.announcements import BatchAnnouncements
from cloud_trainer.sessions.compute import Compute
from cloud_trainer.sessions.session import Session
from shared.codec import aligned_buffer
from shared.errors import ProtocolError
from shared.tensor_wire import decode_tensor
from shared.transport.stream.framing import Assembler, TensorKey
from shared.transport.stream.packets import Damaged, Packet, undamaged
from shared.wire.isthmus.v1.tensor_pb2 import Role
from shared.wire.isthmus.v1.trainer_pb2 import EvaluateRequest, EvaluateResponse


async def evaluate(
    requests: AsyncIterator[Packet[EvaluateRequest] | Damaged],
    find_session: Callable[[str], Session],
    max_tensor_bytes: int,
    compute: Compute,
) -> EvaluateResponse:
    """Evaluate the batches of one stream, numbered from 1. Raises IsthmusError for what is not to be evaluated."""
    samples, loss_sum, correct = 0, 0.0, 0
    has_classes = True
    session: Session | None = None
    announcements: BatchAnnouncements | None = None
    async for received in requests:
        packet = undamaged(received)
        if session is None or announcements is None:
            session = find_session(packet.message.session_id)
            announcements = BatchAnnouncements(session, TensorKey(0, Role.ROLE_LABEL, batch=1), max_tensor_bytes)
            assembler = Assembler(announcements.accept, aligned_buffer)
        session.check_named(packet.message.session_id)
        tensor = assembler.add(packet.message.frame, packet.payload)
        if tensor is None or (whole := announcements.received(tensor)) is None:
            continue
        codec = compute.codec_of(session.id)
        features = tuple([await decode_tensor(feature, codec) for feature in whole.encoded_features])
        labels = await decode_tensor(whole.encoded_labels, codec)
        batch = await compute.of(session.id).run(session.training.evaluate, features, labels)
        samples += batch.samples
        loss_sum += batch.loss * batch.samples
        has_classes = has_classes and batch.correct is not None
        correct += batch.correct or 0
    if samples == 0 or announcements is None or not announcements.between_batches:
        raise ProtocolError("the stream ended before a batch was whole")
    return EvaluateResponse(samples=samples, loss=loss_sum / samples, correct=correct if has_classes else None)
