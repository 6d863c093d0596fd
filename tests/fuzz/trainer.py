"""A real trainer process under generated calls: what came of them, and how much memory it took."""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2
from hypothesis import HealthCheck, Phase, given, seed, settings

from isthmus import run_training
from shared.client.methods import HEALTH
from shared.placement import AGENT
from shared.transport.rpc.call_status import CallStatus
from shared.wire.isthmus.v1 import trainer_pb2 as pb
from shared.wire.isthmus.v1.link_pb2 import LinkMessage
from tests.fuzz.messages import RELAYED, Call, calls
from tests.support.forked import Forked
from tests.support.peers.strangers import CONTROL
from tests.support.plain import assert_same_bits, plain_state
from tests.support.running import edge_config, trainer_process
from tests.support.wire import BATCH, BLOCKS, CUT, REFUSALS, SERVICE, TRAINER, RawPeer, begin_link, placed

MIB = 1 << 20
MAX_SESSIONS, MAX_SESSION_BYTES, MAX_TENSOR_BYTES = 4, 32 * MIB, 4 * MIB
MAX_GROWTH_BYTES = MAX_SESSIONS * MAX_SESSION_BYTES + 128 * MIB
"""Maximum rise of the trainer's resident memory above its level after the first calls: the bytes that its sessions are
allowed, and as much again for messages on their way, metrics, the log, and what allocators keep."""
CALL_SECONDS = 60.0
"""A call that has not ended by then hangs."""
CALLS_PER_SESSION = 8
CALLS_PER_RUN = 250
LOSSES = ("cross_entropy", "mse", "tests.support.models.losses:of_the_first")
"""The losses of the sessions that calls are made on, one after the other: each takes labels of other shapes."""
Code = grpc.StatusCode
ENDS = REFUSALS | {Code.OK}
"""Statuses with which a call may end, whatever was said in it."""
ENDS_OF_LIBRARIES = ENDS | {Code.UNIMPLEMENTED, Code.INTERNAL, Code.UNKNOWN}
"""The same for health and reflection, which are gRPC's own: it says so of a message that it cannot read."""
_LIMITS = [
    "server.accept_inputs=true",
    'groups=[{name="line", size=1, most=2}]',
    f'peers.allowed=["{RELAYED[0]}"]',
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


class State(Enum):
    """The states of a session in which calls are made on it."""

    OPENED = auto()
    """No agent has joined it: blocks can be uploaded."""
    JOINED = auto()
    WITHOUT_BLOCKS = auto()
    EVALUATING = auto()
    LINKED = auto()
    CHANGED = auto()
    """Another placement has come into force."""
    CHECKPOINTING = auto()
    OF_SEVERAL = auto()
    """Another trainer dials this one, with a ticket."""
    IN_GROUP = auto()
    """It is that of a group's member, which has begun."""


NEAR = "near"
_BETWEEN = [(NEAR, 0, CUT), (TRAINER, CUT, BLOCKS)]
_PLACED: dict[State, dict[str, Any]] = {
    State.WITHOUT_BLOCKS: {"cut": BLOCKS},
    State.OF_SEVERAL: {
        "placement": placed(
            workers=[AGENT, NEAR, TRAINER],
            tiles=[
                {"worker": worker, "blocks": [first, stop], "samples": [0, BATCH]} for worker, first, stop in _BETWEEN
            ],
            codecs=[],
        )
    },
    State.IN_GROUP: {
        "placement": placed(
            cut=BLOCKS,
            owners={str(block): TRAINER for block in range(BLOCKS)},
            codecs=[
                {"from": AGENT, "to": TRAINER, "cargo": "weight_gradient", "codec": "raw"},
                {"from": TRAINER, "to": AGENT, "cargo": "weights", "codec": "raw"},
            ],
        ),
        "group": pb.GroupSeat(name="line", steps=20, frozen_digests=[0] * BLOCKS),
    },
}


_MAY_BE = {State.OF_SEVERAL: {Code.UNAUTHENTICATED}, State.IN_GROUP: {Code.UNAVAILABLE}}
"""Further statuses with which a call may end in a state."""


@dataclass
class Report:
    """messages: sent in all. ends: calls by method and status. states: those in which sessions were that calls were made on.

    grown_bytes: most of the trainer's memory above the first.
    """

    messages: int = 0
    ends: Counter[tuple[str, str]] = field(default_factory=Counter)
    states: Counter["State"] = field(default_factory=Counter)
    grown_bytes: int = 0


class _Peer(RawPeer):
    async def serves(self) -> bool:
        """Tell whether the health check says so, in time."""
        check = self._channel.unary_unary(HEALTH)
        answer = await check(health_pb2.HealthCheckRequest().SerializeToString(), timeout=CALL_SECONDS)
        status = health_pb2.HealthCheckResponse.FromString(answer).status
        return bool(status == health_pb2.HealthCheckResponse.SERVING)

    async def call(
        self, method: str, messages: list[bytes], ticket: str | None = None
    ) -> tuple[grpc.StatusCode, str, list[bytes]]:
        """Any method as if it took a stream and answered with one; what never ends is left after its first answer.

        ticket: shown where a link is dialled.
        """
        shown = [("authorization", f"Ticket {ticket}")] if ticket is not None and method.endswith("/Link") else None

        async def upward() -> Any:
            for message in messages:
                yield message

        call = self._channel.stream_stream(method)(upward(), timeout=CALL_SECONDS, metadata=shown)
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
    def __init__(self, peer: _Peer, process: Forked, report: Report) -> None:
        self._peer, self._process, self._report = peer, process, report
        self._session: str | None = None
        self._beside: asyncio.Task[Any] | None = None
        """A call that keeps the session in its state."""
        self._may_be: set[grpc.StatusCode] = set()
        """Further statuses with which a call may end in this state."""
        self._ticket: str | None = None
        """With which another trainer may dial this one."""
        self._calls = 0
        self._first_bytes = 0

    async def make(self, call: Call) -> None:
        """One call, on a session that is not old. Raises AssertionError for an end that may not be."""
        if self._calls % CALLS_PER_SESSION == 0:
            await self._another_session()
        self._calls += 1
        assert self._session is not None
        code, responses = await self._end_of(call)
        if code is Code.OK and call.method.endswith("/OpenSession"):
            await self._close(pb.OpenSessionResponse.FromString(responses[0]).session_id)
        assert self._process.poll() is None, "the trainer has ended"
        assert await self._peer.serves(), "its health check says otherwise"
        self._measure()

    async def make_stopping(self, call: Call) -> None:
        """The same of a trainer that is about to stop: it may be gone."""
        if self._process.poll() is None:
            assert self._session is not None
            await self._end_of(call)

    async def begin_stopping(self) -> None:
        """Have the trainer stop while a session is linked, so that it waits for a checkpoint that no agent requests."""
        await self._another_session(State.LINKED)
        self._may_be = {Code.UNAVAILABLE, Code.CANCELLED}
        self._process.send_signal(signal.SIGTERM)

    async def close(self) -> None:
        """Make no more calls."""
        await self._leave_session()
        await self._peer.__aexit__()

    async def _end_of(self, call: Call) -> tuple[grpc.StatusCode, list[bytes]]:
        assert self._session is not None
        is_peers = self._ticket is not None and call.method.endswith("/Link")
        messages = call.messages(self._session, NEAR if is_peers else AGENT)
        code, details, responses = await self._peer.call(call.method, messages, self._ticket)
        if is_peers and responses:
            self._ticket = LinkMessage.FromString(responses[0]).opened.next_ticket
        name = call.method.rpartition("/")[2]
        self._report.messages += len(messages)
        self._report.ends[name, code.name] += 1
        ours = call.method.startswith((f"/{SERVICE}/", f"/{CONTROL}/"))
        may_be = (ENDS if ours else ENDS_OF_LIBRARIES) | self._may_be
        if name == "Relay":  # nobody is at the address that is allowed
            may_be = may_be | {Code.UNAVAILABLE}
        assert code in may_be, (call.method, code, details)
        if code is not Code.OK and ours:
            assert details.isprintable(), details
            assert 0 < len(details.encode()) <= 2100, details
        return code, responses

    async def _another_session(self, state: "State | None" = None) -> None:
        await self._leave_session()
        number = self._calls // CALLS_PER_SESSION
        state = state or list(State)[number % len(State)]
        self._report.states[state] += 1
        self._may_be = _MAY_BE.get(state, set())
        loss = LOSSES[0 if state is State.IN_GROUP else number % len(LOSSES)]  # all members of a group have the same
        self._session = await self._peer.open(loss=loss, **_PLACED.get(state, {}))
        if state is not State.OPENED:
            tickets = (await self._peer.join(self._session)).tickets
            self._ticket = next((one.ticket for one in tickets), None)
            await self._begin(state, self._session)

    async def _begin(self, state: "State", session: str) -> None:
        """Bring a session that was joined into a state."""
        fence = pb.Fence(session_term=1)
        match state:
            case State.EVALUATING:
                request = pb.JoinEvaluationRequest(session_id=session, fence=fence, evaluation=1)
                self._beside = asyncio.create_task(self._peer.unary("JoinEvaluation", request.SerializeToString()))
            case State.LINKED:
                self._beside = asyncio.create_task(self._peer.streamed("Link", begin_link(session), ends=False))
                while not await self._peer.attached(session):
                    pass
            case State.CHANGED:
                commit = pb.CommitPlacementRequest(
                    session_id=session, fence=fence, placement=placed(version=1, cut=BLOCKS)
                )
                assert (await self._peer.unary("CommitPlacement", commit.SerializeToString())).code is Code.OK
            case State.IN_GROUP:
                beginning = pb.Beginning(group=pb.GroupBeginning(others=[]))
                begin = pb.RestoreWorkerRequest(
                    session_id=session, fence=fence, placement=_PLACED[state]["placement"], beginning=beginning
                )
                end = await self._peer.unary("RestoreWorker", begin.SerializeToString())
                assert end.code is Code.OK, end
            case State.CHECKPOINTING:
                taking = pb.CheckpointWorkerRequest(session_id=session, fence=fence, name=pb.CheckpointName())
                self._beside = asyncio.create_task(self._peer.unary("CheckpointWorker", taking.SerializeToString()))

    async def _leave_session(self) -> None:
        if self._beside is not None:
            self._beside.cancel()
            await asyncio.gather(self._beside, return_exceptions=True)
        if self._session is not None and self._process.poll() is None:
            await self._close(self._session)
        self._session = self._beside = self._ticket = None

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
                _one_run(runner, fuzzing.make, number)
                number += 1
            config = edge_config(*_TRAINING, f"trainer.address={address}")
            result = runner.run(run_training(config))
            runner.run(fuzzing.begin_stopping())
            _one_run(runner, fuzzing.make_stopping, number)
            runner.run(fuzzing.close())
            assert process.wait(CALL_SECONDS) == 0, "it has stopped well"
        assert_same_bits(expected, result.module.state_dict())
    return report


async def _open(address: str) -> _Peer:
    return await _Peer(address, CALL_SECONDS).__aenter__()


def _one_run(runner: asyncio.Runner, make_one: Callable[[Call], Coroutine[Any, Any, None]], number: int) -> None:
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
        runner.run(make_one(call))

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
