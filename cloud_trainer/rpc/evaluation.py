"""Evaluation through the cut: takes features and labels, answers with totals. It changes no weights."""

from collections.abc import AsyncIterator, Callable

from cloud_trainer.rpc.incoming_batches import IncomingBatches
from cloud_trainer.sessions.session import CutSession
from cloud_trainer.sessions.threads import TrainerThreads
from shared.codec import aligned_buffer
from shared.errors import ProtocolError
from shared.tensor_wire import decode_tensor
from shared.transport.stream.framing import Assembler, TensorKey
from shared.transport.stream.packets import Damaged, Packet, undamaged
from shared.wire.isthmus.v1.tensor_pb2 import Role
from shared.wire.isthmus.v1.trainer_pb2 import EvaluateRequest, EvaluateResponse


async def evaluate(
    requests: AsyncIterator[Packet[EvaluateRequest] | Damaged],
    find_session: Callable[[str], CutSession],
    max_tensor_bytes: int,
    threads: TrainerThreads,
) -> EvaluateResponse:
    """Evaluate the batches of one stream, numbered from 1. Raises IsthmusError for a batch that cannot be evaluated."""
    samples, loss_sum, correct = 0, 0.0, 0
    has_classes = True
    session: CutSession | None = None
    incoming: IncomingBatches | None = None
    async for received in requests:
        packet = undamaged(received)
        if session is None or incoming is None:
            session = find_session(packet.message.session_id)
            incoming = IncomingBatches(session, TensorKey(0, Role.ROLE_LABEL, batch=1), max_tensor_bytes)
            assembler = Assembler(incoming.accept, aligned_buffer)
        session.check_named(packet.message.session_id)
        tensor = assembler.add(packet.message.frame, packet.payload)
        if tensor is None or (whole := incoming.add(tensor)) is None:
            continue
        codec = threads.codec_lane(session.id)
        features = tuple([await decode_tensor(feature, codec) for feature in whole.features])
        labels = await decode_tensor(whole.labels, codec)
        batch = await threads.compute_lane(session.id).run(session.training.evaluate, features, labels)
        samples += batch.samples
        loss_sum += batch.loss * batch.samples
        has_classes = has_classes and batch.correct is not None
        correct += batch.correct or 0
    if samples == 0 or incoming is None or not incoming.between_batches:
        raise ProtocolError("the stream ended before a batch was whole")
    return EvaluateResponse(samples=samples, loss=loss_sum / samples, correct=correct if has_classes else None)
