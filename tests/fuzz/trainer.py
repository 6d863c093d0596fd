"""A real trainer process under generated calls: what came of them, and how much memory it took."""

import asyncio
import os
import subprocess
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from hypothesis import HealthCheck, Phase, given, seed, settings

from edge_agent import run_training
from shared.transport.rpc.call_status import CallStatus
from shared.wire.isthmus.v1 import trainer_pb2 as pb
from tests.fuzz.messages import Call, calls
from tests.support.peers.strangers import CONTROL
from tests.support.plain import assert_same_bits, plain_state
from tests.support.running import edge_config, trainer_process
from tests.support.wire import REFUSALS, SERVICE, RawPeer

MIB = 1 << 20
MAX_SESSIONS, MAX_SESSION_BYTES, MAX_TENSOR_BYTES = 4, 32 * MIB, 4 * MIB
MAX_GROWTH_BYTES = MAX_SESSIONS * MAX_SESSION_BYTES + 128 * MIB
"""How far the trainer's resident memory may rise above what it was after the first calls: what its sessions are allowed,
and as much again for messages on their way, metrics, the log, and what allocators keep."""
CALL_SECONDS = 60.0
"""A call that has not ended by then hangs."""
CALLS_PER_SESSION = 8
CALLS_PER_RUN = 250
LOSSES = ("cross_entropy", "mse", "tests.support.models.losses:of_the_first")
"""The losses of the sessions that calls are made on, one after the other: each takes labels of other shapes."""
Code = grpc.StatusCode
ENDS = REFUSALS | {Code.OK}
"""How a call may end, whatever was said in it."""
ENDS_OF_LIBRARIES = ENDS | {Code.UNIMPLEMENTED, Code.INTERNAL, Code.UNKNOWN}
"""The same for health and reflection, which are gRPC's own: it says so of a message that it cannot read."""
_LIMITS = [
    f"server.max_sessions={MAX_SESSIONS}",
    f"server.max_session_bytes={MAX_SESSION_BYTES}",
    f"server.max_tensor_bytes={MAX_TENSOR_BYTES}",
    "compute.threads=1",
    "compute.device=cpu",
]
_TRAINING = [
    'model.factory="shared.model.zoo:mlp"',
    'data.train={factory="tests.support.samples:FlatDigits"}',
    "deployment.cut=1",
    "training.max_steps=20",
    "checkpoints.location=none",
]


@dataclass
class Report:
    """messages: sent in all. ends: calls by method and status. grown_bytes: most of the trainer's memory above the first."""

    messages: int = 0
    ends: Counter[tuple[str, str]] = field(default_factory=Counter)
    grown_bytes: int = 0


class _Peer(RawPeer):
    async def call(self, method: str, messages: list[bytes]) -> tuple[grpc.StatusCode, str, list[bytes]]:
        """Any method as if it took a stream and answered with one; what never ends is left after its first answer."""

        async def upward() -> Any:
            for message in messages:
                yield message

        call = self._channel.stream_stream(method)(upward(), timeout=CALL_SECONDS)
        ending, responses = CallStatus(call), []
        try:
            async for response in call:
                responses.append(response)
                if method.endswith(("/Watch", "/JoinEvaluation")):
                    call.cancel()
                    return Code.OK, "", responses
        except grpc.aio.AioRpcError:
            failure = await ending.failure()
            assert failure is not None
            return failure.code(), failure.details() or "", responses
        return Code.OK, "", responses


class _Fuzzing:
    def __init__(self, peer: _Peer, process: subprocess.Popen[str], report: Report) -> None:
        self._peer, self._process, self._report = peer, process, report
        self._session: str | None = None
        self._calls = 0
        self._first_bytes = 0

    async def make(self, call: Call) -> None:
        """One call, on a session that is not old. Raises AssertionError for an end that may not be."""
        if self._calls % CALLS_PER_SESSION == 0:
            await self._another_session()
        self._calls += 1
        assert self._session is not None
        messages = call.messages(self._session)
        code, details, responses = await self._peer.call(call.method, messages)
        name = call.method.rpartition("/")[2]
        self._report.messages += len(messages)
        self._report.ends[name, code.name] += 1
        ours = call.method.startswith((f"/{SERVICE}/", f"/{CONTROL}/"))
        assert code in (ENDS if ours else ENDS_OF_LIBRARIES), (call.method, code, details)
        if code is not Code.OK and ours:
            assert details.isprintable(), details
            assert 0 < len(details.encode()) <= 2100, details
        if code is Code.OK and name == "OpenSession":
            await self._close(pb.OpenSessionResponse.FromString(responses[0]).session_id)
        assert self._process.poll() is None, "the trainer has ended"
        self._measure()

    async def _another_session(self) -> None:
        if self._session is not None:
            await self._close(self._session)
        number = self._calls // CALLS_PER_SESSION
        self._session = await self._peer.open(loss=LOSSES[number % len(LOSSES)])
        if number % 2:  # before somebody joins it, blocks can be uploaded; afterwards, it can be linked
            await self._peer.join(self._session)

    async def _close(self, session: str) -> None:
        request = pb.CloseSessionRequest(session_id=session, fence=pb.Fence(session_term=2**64 - 1))
        end = await self._peer.unary("CloseSession", request.SerializeToString())
        assert end.code is Code.OK, end

    def _measure(self) -> None:
        resident = _resident_bytes(self._process.pid)
        if self._calls <= CALLS_PER_RUN:
            self._first_bytes = max(self._first_bytes, resident)
        self._report.grown_bytes = max(self._report.grown_bytes, resident - self._first_bytes)
        assert self._report.grown_bytes < MAX_GROWTH_BYTES, f"{self._report.grown_bytes} bytes more than at first"


def fuzz_trainer(messages: int, first_seed: int, folder: Path) -> Report:
    """Send at least so many generated messages to a trainer of its own, then train with it, bit for bit as alone.

    folder: where it keeps its checkpoints. Raises AssertionError, with the seed of the run of calls that did it.
    """
    report = Report()
    expected = plain_state(edge_config(*_TRAINING))
    with trainer_process(*_LIMITS, f"checkpoints.location={folder}") as (process, address):
        with asyncio.Runner() as runner:
            peer = runner.run(_open(address))
            fuzzing = _Fuzzing(peer, process, report)
            number = first_seed
            while report.messages < messages:
                _one_run(runner, fuzzing, number)
                number += 1
            runner.run(peer.__aexit__())
            config = edge_config(*_TRAINING, f"trainer.address={address}")
            result = runner.run(run_training(config))
        assert_same_bits(expected, result.module.state_dict())
    return report


async def _open(address: str) -> _Peer:
    return await _Peer(address, CALL_SECONDS).__aenter__()


def _one_run(runner: asyncio.Runner, fuzzing: _Fuzzing, number: int) -> None:
    @seed(number)
    @settings(
        max_examples=CALLS_PER_RUN,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(calls())
    def make(call: Call) -> None:
        runner.run(fuzzing.make(call))

    try:
        make()
    except BaseException as failure:
        failure.add_note(f"calls of seed {number}")
        raise


def _resident_bytes(pid: int) -> int:
    """The resident memory of a process, as Linux says; 0 elsewhere."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
