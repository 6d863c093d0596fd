"""Ten thousand damaged messages over a real socket: each is refused in words, and the trainer is afterwards as it was."""

import gc
from collections import Counter
from contextlib import suppress
from itertools import islice
from pathlib import Path

import grpc
import pytest

from shared.wire.isthmus.v1 import trainer_pb2 as pb
from tests.support.peers.damage import Damage
from tests.support.plain import assert_same_bits, plain_state
from tests.support.running import edge_config, running_trainer, train_with
from tests.support.wire import REFUSALS, RawPeer, opening, positioned

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]
WARM_UP = 500
SEED = 20260111
MIB = 1 << 20
GROWTH_BYTES = 64 * MIB
"""Thousands of refusals, and the logs and metrics of them, may cost so much memory in this process of both sides."""
Code = grpc.StatusCode
TRAINING = [
    'model.factory="shared.model.zoo:mlp"',
    'data.train={factory="tests.support.samples:FlatDigits"}',
    "deployment.cut=1",
    "training.max_steps=20",
]


class Memory:
    """The memory of this process, by Linux's own account; elsewhere everything reads 0."""

    def __init__(self) -> None:
        gc.collect()
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
        self._resident = self._read("VmRSS")

    def grown(self) -> int:
        """Bytes more than at the beginning."""
        gc.collect()
        return self._read("VmRSS") - self._resident

    def peak(self) -> int:
        """Most bytes more than at the beginning that there were at any moment."""
        return self._read("VmHWM") - self._resident

    @staticmethod
    def _read(name):
        with suppress(OSError):
            for line in Path("/proc/self/status").read_text().splitlines():
                if line.startswith(f"{name}:"):
                    return 1024 * int(line.split()[1])
        return 0


async def outcome(peer, case):
    """Return the trainer's end of a case; the objects that the case opened are closed."""
    if case.method not in ("Link", "UploadBlock"):
        end = await peer.unary(case.method, case.messages[0])
        if end.code is Code.OK and case.method == "OpenSession":
            await peer.close_session(pb.OpenSessionResponse.FromString(end.responses[0]).session_id)
        return end
    if case.codec is None:
        return await peer.streamed(case.method, case.messages)
    session = await peer.open_and_join(codec=case.codec)
    begun = [opening(session), positioned()] if case.positioned else [opening(session)]
    end = await peer.streamed(case.method, [*begun, *case.messages], ends=case.ends)
    await peer.close_session(session)
    return end


@pytest.mark.parametrize("messages", [2_000, pytest.param(10_000, marks=pytest.mark.full)])
async def test_thousands_of_damaged_messages(messages):
    expected = plain_state(edge_config(*TRAINING))
    ends, memory = Counter(), None
    flags = [f"server.max_tensor_bytes={4 * MIB}", 'checkpoints.location="none"']
    async with running_trainer(*flags) as server, RawPeer(server.address) as peer:
        standing, fresh = await peer.open_and_join(), await peer.open()
        cases = Damage(SEED, standing, fresh).cases()
        for number, case in enumerate(islice(cases, messages)):
            if number == WARM_UP:
                memory = Memory()
            end = await outcome(peer, case)
            ends[case.method, end.code] += 1
            assert end.code in REFUSALS or (end.code is Code.OK and case.harmless), (number, case.what, end)
            if end.code is not Code.OK:
                assert end.details, (number, case.what)
                assert end.details.isprintable(), (number, case.what, end.details)
                assert len(end.details) <= 2000
        assert await peer.next_step(standing) == 0, "the session that was only spoken of has not moved"
        for session in (standing, fresh):
            await peer.close_session(session)
        assert server.metrics.registry.get_sample_value("isthmus_sessions") == 0, "none was left behind"
        result = await train_with(server, *TRAINING)
    assert_same_bits(expected, result.module.state_dict())
    assert memory.grown() < GROWTH_BYTES
    assert memory.peak() < 2 * GROWTH_BYTES
    refused = {
        method: sum(count for (of, code), count in ends.items() if of == method and code in REFUSALS)
        for method, _ in ends
    }
    assert all(refused[method] > messages / 20 for method in ("OpenSession", "Link", "UploadBlock")), refused
