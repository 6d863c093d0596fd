"""A stream within this process: both ends, and the connection between them, are the production ones."""

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from shared.codec import aligned_buffer
from shared.transport.stream.duplex import Duplex
from shared.transport.stream.framing import Assembler, TensorKey, WireTensor
from shared.transport.stream.packets import Packet
from shared.wire.isthmus.v1.link_pb2 import LinkMessage, StepDone
from shared.wire.isthmus.v1.tensor_pb2 import Frame, Role, TensorHeader
from tests.support.loopback import MOST_UNREAD_PACKETS, LoopbackChannel, loopback

Near = Far = LoopbackChannel[LinkMessage, LinkMessage]


def channels() -> tuple[Near, Far]:
    return loopback()


def duplex(outgoing, channel, delivered=lambda *_: None):
    return Duplex(outgoing, channel, Assembler(lambda *_: None, aligned_buffer), 64, 1 << 20, delivered)


def tensor(step: int, payload: bytes, role: Role.ValueType) -> WireTensor:
    header = TensorHeader(codec="raw", shape=[len(payload)], strides=[1], encoded_bytes=len(payload))
    return WireTensor(TensorKey(step, role, 1), 2, header, memoryview(payload))


@settings(deadline=None)
@given(st.lists(st.binary(max_size=300), max_size=4), st.lists(st.binary(max_size=300), max_size=4))
async def test_tensors_go_both_ways_until_each_end_says_that_no_more_comes(up, down):
    edge, trainer = channels()
    near, far = duplex(LinkMessage, edge), duplex(LinkMessage, trainer)

    async def send(stream, channel, payloads, role):
        for step, payload in enumerate(payloads):
            await stream.send(tensor(step, payload, role))
        await channel.end()

    async def arrived(stream):
        tensors = []
        while (event := await stream.receive()) is not None:
            tensors += event[1]
        return [(one.key.step, one.key.role, bytes(one.payload)) for one in tensors]

    feature, gradient = Role.ROLE_FEATURE, Role.ROLE_ERROR_GRADIENT
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        tasks.create_task(send(near, edge, up, feature))
        tasks.create_task(send(far, trainer, down, gradient))
        at_trainer, at_edge = tasks.create_task(arrived(far)), tasks.create_task(arrived(near))
    assert at_trainer.result() == [(step, feature, payload) for step, payload in enumerate(up)]
    assert at_edge.result() == [(step, gradient, payload) for step, payload in enumerate(down)]


async def test_both_ends_may_send_the_same_message_type():
    one, other = loopback()
    near, far = duplex(LinkMessage, one), duplex(LinkMessage, other)
    await near.send(tensor(3, b"abc", Role.ROLE_FEATURE))
    await far.send(tensor(4, b"de", Role.ROLE_FEATURE))
    (_, (at_far,)), (_, (at_near,)) = await far.receive(), await near.receive()
    assert (bytes(at_far.payload), bytes(at_near.payload)) == (b"abc", b"de")


async def test_changes_at_either_end_do_not_affect_a_written_message():
    near, far = channels()
    message, payload = LinkMessage(frames=[Frame(step=3)]), bytearray(b"abc")
    await near.write(Packet(message, memoryview(payload)))
    message.frames[0].step, payload[0] = 4, 0
    packet = await far.read()
    packet.message.ClearField("frames")
    assert bytes(packet.payload) == b"abc"
    assert message.frames[0].step == 4


async def test_a_writer_waits_until_its_peer_reads():
    near, far = channels()
    for step in range(MOST_UNREAD_PACKETS):
        await far.write(Packet(LinkMessage(dones=[StepDone(step=step)])))
    waiting = asyncio.ensure_future(far.write(Packet(LinkMessage(dones=[StepDone(step=MOST_UNREAD_PACKETS)]))))
    await asyncio.wait({waiting}, timeout=0)
    assert not waiting.done()
    steps = [(await near.read()).message.dones[0].step for _ in range(MOST_UNREAD_PACKETS + 1)]
    assert steps == list(range(MOST_UNREAD_PACKETS + 1))
    await waiting
