"""An agent, and a trainer that dials another one, against a trainer whose every answer may be a lie: what came of each run.

The real trainers and the agent are in this process. Before the last trainer stands a proxy that rewords or damages one answer
of a run, field by field from the contract's descriptors. Whatever it says, the run ends in time, with a result or a sentence.
"""

import asyncio
import gc
import os
import random
import tempfile
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from isthmus import run_training
from shared.errors import IsthmusError
from tests.fuzz.messages import bodies, reworded_message, sealed
from tests.support.peers.lying_trainer import LyingTrainer, bytes_of, lying_trainer, message_of
from tests.support.running import edge_config, running_trainer

MIB = 1 << 20
MAX_GROWTH_BYTES = 256 * MIB
"""Maximum rise of this process's resident memory above its level after the first runs."""
RUN_SECONDS = 60.0
"""A run that has not ended by then hangs."""
FIRST_RUNS = 10
_CHOICE_BYTES = 1 << 16
"""Random bytes that one lie is drawn from. A lie that needs more is not told."""
_DRAWN = 4
"""Most drawings of one lie: some of them come out as the truth."""
ANSWERS = (
    "OpenSession",
    "JoinSession",
    "Link",
    "Link",
    "CheckpointWorker",
    "JoinEvaluation",
    "CommitPlacement",
    "RestoreWorker",
    "DownloadBlock",
    "OfferBlocks",
    "FetchBlocks",
    "DialPeers",
    "CloseSession",
    "Check",
)
"""Methods that such a run calls. Most messages are those of links."""
_FACTORY = '"tests.support.samples:FlatDigits"'
_RUN = [
    'model.factory="shared.model.zoo:mlp"',
    f"data.train={{factory={_FACTORY}}}",
    f"data.test={{factory={_FACTORY}}}",
    "training.max_steps=6",
    "checkpoints.every_steps=2",
    "link.stall_seconds=2",
    "deployment.staleness=[[0, 0], [3, 1]]",
    'deployment.staleness_every="step"',
]


_PATIENCE = ("connect_timeout_seconds=2", "call_timeout_seconds=2", "give_up_seconds=1")


@dataclass
class AgentReport:
    """runs: in all. ends: by what a run ended with. told: by the call whose answer was changed. grown_bytes: most memory."""

    runs: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    told: Counter[str] = field(default_factory=Counter)
    grown_bytes: int = 0


class _Lies:
    """The lie of one run: one answer of one call is something else.

    The answer is known only while the run goes on, so the lie is drawn from bytes that were chosen before.
    """

    def __init__(self, method: str, number: int, choices: bytes) -> None:
        self._method, self._left, self._choices = method, number, choices
        self.is_told = False
        self.failure: BaseException | None = None
        """Error of the drawing itself. gRPC would keep it to itself."""

    def tell(self, method: str, data: bytes) -> bytes:
        """See `Lie`."""
        if method != self._method:
            return data
        self._left -= 1
        if self._left >= 0:
            return data
        self._left = 10**9
        told = data
        try:
            for drawing in range(_DRAWN):
                if told == data:
                    told = _lie(method, data, self._choices[drawing * _CHOICE_BYTES :][:_CHOICE_BYTES])
        except Exception as failure:
            self.failure = failure
            return data
        self.is_told = told != data
        return told


def _lie(method: str, data: bytes, choices: bytes) -> bytes:
    drawn = data

    @settings(database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def draw(source: st.DataObject) -> None:
        nonlocal drawn
        message = source.draw(reworded_message(message_of(method, data, request=False)))
        streamed = "checksum" in message.DESCRIPTOR.fields_by_name
        if source.draw(st.integers(0, 3)):
            drawn = bytes_of(message)
            return
        body = source.draw(bodies(message))
        drawn = sealed(body) if streamed and source.draw(st.booleans()) else body

    draw.hypothesis.fuzz_one_input(choices)
    return drawn


class _Fuzzing:
    def __init__(self, lies: LyingTrainer, flags: list[str], report: AgentReport) -> None:
        self._lies, self._flags, self._report = lies, flags, report
        self._first_bytes = 0

    async def run(self, method: str, number: int, choices: bytes) -> None:
        """Make one run. Raises AssertionError for an end that may not be, and whatever is no IsthmusError."""
        lie = _Lies(method, number, choices)
        self._lies.of_answers = lie.tell
        end = await self._end()
        if lie.failure is not None:
            raise lie.failure
        self._report.runs += 1
        self._report.ends[end] += 1
        self._report.told[method] += lie.is_told
        self._measure()

    async def _end(self) -> str:
        with tempfile.TemporaryDirectory() as folder:
            trace = f"output.trace={Path(folder) / 'trace.json'}"
            config = edge_config(*_RUN, *self._flags, f"checkpoints.location={folder}", trace)
            try:
                async with asyncio.timeout(RUN_SECONDS):
                    await run_training(config)
            except IsthmusError as failure:
                end, sentence = type(failure).__name__, str(failure)
            else:
                return "result"
        assert sentence.isprintable(), repr(sentence)
        assert 0 < len(sentence) <= 4000, sentence
        return end

    def _measure(self) -> None:
        gc.collect()
        resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        if self._report.runs <= FIRST_RUNS:
            self._first_bytes = max(self._first_bytes, resident)
        self._report.grown_bytes = max(self._report.grown_bytes, resident - self._first_bytes)
        assert self._report.grown_bytes < MAX_GROWTH_BYTES, f"{self._report.grown_bytes} bytes more than at first"


def fuzz_agent(runs: int, first_seed: int = 0) -> AgentReport:
    """Make ``runs`` runs against lying trainers. Raises AssertionError, with the number of the run that did it."""
    report = AgentReport()
    chosen = random.Random(first_seed)
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        fuzzings = runner.run(_begin(stack, report))
        try:
            for number in range(runs):
                fuzzing, method, count = chosen.choice(fuzzings), chosen.choice(ANSWERS), chosen.randint(0, 6)
                # Most calls are made once or twice; a link says much.
                told = count if method == "Link" else max(count - 4, 0)
                try:
                    runner.run(fuzzing.run(method, told, chosen.randbytes(_DRAWN * _CHOICE_BYTES)))
                except BaseException as failure:
                    failure.add_note(f"run {number} of seed {first_seed}")
                    raise
        finally:
            runner.run(stack.aclose())
    return report


async def _begin(stack: AsyncExitStack, report: AgentReport) -> list[_Fuzzing]:
    """Runs with one trainer, which lies, and with two, of which the farther one lies to the agent and to the nearer one."""
    kept = stack.enter_context(tempfile.TemporaryDirectory())
    near, far = [
        await stack.enter_async_context(
            running_trainer(
                f"checkpoints.location={Path(kept) / name}", 'peers.allowed=["127.0.0.1:*"]', "server.max_sessions=100"
            )
        )
        for name in ("near", "far")
    ]
    lies, address = await stack.enter_async_context(lying_trainer(far.address))
    alone = [f"trainer.address={address}", "deployment.cut=1", *(f"trainer.{each}" for each in _PATIENCE)]
    addresses = {"near": near.address, "far": address}
    trainers = ", ".join(f'{{name="{name}", address="{at}", {", ".join(_PATIENCE)}}}' for name, at in addresses.items())
    chain = [
        f"trainers=[{trainers}]",
        "placement.edge=0:1",
        "placement.near=1:2",
        "placement.far=2:",
        "checkpoints.replicas=1",
    ]
    return [_Fuzzing(lies, flags, report) for flags in (alone, chain)]
