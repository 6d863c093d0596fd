"""A change of the placement that a worker refuses, whoever asked for it, leaves the run as it was, and the chooser is told."""

import asyncio
import json
from dataclasses import replace

import grpc
import pytest

from cloud_trainer.rpc.blocks import BlockReceiver
from cloud_trainer.sessions.worker.session_worker import SessionWorker
from edge_agent.coordinator.table import CHANGES
from edge_agent.main import app as agent_app
from edge_agent.training.choosers import Chooser
from isthmus import run_training
from shared.errors import ModelError, RefusedError
from shared.training import held_blocks
from shared.transport.rpc.status import StatusError
from tests.support.commands import command
from tests.support.experiments import flags
from tests.support.plain import assert_same_bits, plain_state
from tests.support.running import Listening, edge_config, running_trainer

pytestmark = pytest.mark.usefixtures("one_thread")
CHOSEN = flags("mlp", "adamw")
Code = grpc.StatusCode
REFUSALS = {
    "for good": (StatusError(Code.RESOURCE_EXHAUSTED, "there is no memory"), 1),
    "at present": (StatusError(Code.RESOURCE_EXHAUSTED, "there is no memory now", 10.0), 1),
    "invalid": (StatusError(Code.INVALID_ARGUMENT, "such a block cannot be"), 1),
    "by its state": (StatusError(Code.FAILED_PRECONDITION, "it cannot follow"), CHANGES),
    "by a defect": (StatusError(Code.INTERNAL, "a defect"), CHANGES),
    "forbidden": (StatusError(Code.PERMISSION_DENIED, "it is not allowed"), 1),
    "no room": (ModelError("no room for the block"), 1),
}
"""Ways of a trainer to refuse, each with the number of times that it is asked."""


class Asking(Listening):
    """Asks once for another cut or K, and notes the answer."""

    def __init__(self, change, by=Chooser.OPERATOR, at_step=4):
        super().__init__(progressed=self._ask, session_opened=self._open)
        self._change, self._by, self._at_step = change, by, at_step
        self.deployer, self.answer, self.refusal, self._asking = None, None, "", None

    def _open(self, deployer):
        self.deployer = deployer

    def _ask(self, progress):
        self.refusal = self.deployer.refusal or self.refusal
        if progress.steps >= self._at_step and self._asking is None:
            self.deployer.want(self._change(self.deployer), self._by)
            self._asking = asyncio.ensure_future(self._wait())

    async def _wait(self):
        try:
            self.answer = await self.deployer.in_force()
        except RefusedError as refusal:
            self.answer = refusal


def cut_of(blocks):
    return lambda deployer: deployer.experiment.cut_at((blocks,), deployer.placement)


def staleness_of(limit):
    return lambda deployer: replace(deployer.placement, staleness=limit)


async def trained_as_before(asking, *more):
    """Train with a change that is refused, and compare what comes out with an undisturbed run."""
    async with running_trainer() as server:
        config = edge_config(*CHOSEN, "deployment.cut=3", f"trainer.address={server.address}", *more)
        async with asyncio.timeout(60):
            result = await run_training(config, asking)
    assert result.summary.edge_blocks == 3
    assert isinstance(asking.answer, RefusedError), asking.answer
    assert str(asking.answer).startswith("the placement stays as it is: ")
    assert asking.refusal
    assert asking.refusal in str(asking.answer)
    assert_same_bits(plain_state(edge_config(*CHOSEN)), result.module.state_dict())
    return result


def refusing(monkeypatch, owner, name, error):
    """Have a function of the trainer refuse. Returns its calls."""
    calls = []

    def refuse(*arguments, **_):
        calls.append(arguments)
        raise error

    monkeypatch.setattr(owner, name, refuse)
    return calls


@pytest.mark.first_case
@pytest.mark.parametrize("way", REFUSALS)
async def test_a_block_that_the_trainer_refuses_stays_where_it_is(way, monkeypatch):
    error, times = REFUSALS[way]
    calls = refusing(monkeypatch, BlockReceiver, "_accept", error)
    await trained_as_before(Asking(cut_of(2)))
    assert len(calls) == times


@pytest.mark.first_case
@pytest.mark.parametrize("way", REFUSALS)
async def test_a_placement_that_the_trainer_cannot_prepare_comes_into_force_nowhere(way, monkeypatch):
    error, times = REFUSALS[way]
    calls = refusing(monkeypatch, SessionWorker, "prepare", error)
    await trained_as_before(Asking(cut_of(2)))
    assert len(calls) == times


@pytest.mark.first_case
@pytest.mark.parametrize("by", [by for by in Chooser if by > Chooser.CONFIGURATION])
async def test_a_refusal_ends_no_run_whoever_asked(by, monkeypatch):
    calls = refusing(monkeypatch, SessionWorker, "prepare", REFUSALS["for good"][0])
    await trained_as_before(Asking(staleness_of(1), by))
    assert len(calls) == 1


async def test_a_schedule_that_a_trainer_refuses_leaves_k_as_it_was(monkeypatch):
    calls = refusing(monkeypatch, SessionWorker, "prepare", REFUSALS["for good"][0])
    chosen = [*CHOSEN, "data.batch_size=256", "training.epochs=6", "training.evaluate_every_epochs=1"]
    async with running_trainer() as server:
        scheduled = "deployment.staleness=[[0, 0], [2, 2]]"
        config = edge_config(*chosen, "deployment.cut=3", f"trainer.address={server.address}", scheduled)
        async with asyncio.timeout(60):
            result = await run_training(config, Listening())
    assert len(calls) == 1, "it is not asked again at each boundary"
    assert_same_bits(plain_state(edge_config(*chosen)), result.module.state_dict())


async def test_a_trainer_without_memory_for_what_arrives_says_so_before_anybody_commits(monkeypatch):
    build = held_blocks.build_optimizer

    def scarce(*_):
        monkeypatch.setattr(held_blocks, "build_optimizer", build)
        raise MemoryError("not enough of it")

    class Scarce(Asking):
        def _ask(self, progress):
            if progress.steps >= 4 and self._asking is None:
                monkeypatch.setattr(held_blocks, "build_optimizer", scarce)
            super()._ask(progress)

    scarcely = Scarce(cut_of(2))
    await trained_as_before(scarcely)
    assert "there is no room here for the blocks 2" in str(scarcely.answer)


@pytest.mark.first_case
@pytest.mark.parametrize(
    "asked", [("pin", "--cut=2"), ("pin", "--staleness=2"), ("pin", "--bits=8"), ("place", "{file}")], ids=" ".join
)
async def test_an_operator_hears_of_the_refusal_and_status_shows_it(asked, monkeypatch, tmp_path):
    refusing(monkeypatch, SessionWorker, "prepare", REFUSALS["for good"][0])
    begun = asyncio.Event()
    file = tmp_path / "placement.json"
    tiles = [{"worker": "edge", "blocks": [0, 2]}, {"worker": "trainer", "blocks": [2, 4]}]
    file.write_text(json.dumps({"schema": "isthmus.placement/v1", "workers": ["edge", "trainer"], "tiles": tiles}))
    socket = f"unix:{tmp_path}/a.sock"

    def agent(*arguments):
        given = (argument.format(file=file) for argument in arguments)
        return asyncio.to_thread(command, agent_app, *given, f"--control={socket}")

    async def status():
        shown = await agent("status", "--json")  # beside what the trainer of this process logs
        return json.JSONDecoder().raw_decode(shown, shown.index("{\n"))[0]["status"]

    slowly = 'data.train={factory="tests.support.samples:Slow", kwargs={seconds=0.001}}'
    chosen = [*CHOSEN, slowly, "training.max_steps=60", "training.epochs=10"]
    async with running_trainer() as server:
        config = edge_config(
            *chosen, "deployment.cut=3", f"trainer.address={server.address}", f"control.listen={socket}"
        )
        run = asyncio.create_task(run_training(config, Listening(lambda progress: progress.steps and begun.set())))
        await begun.wait()
        await agent("pause")
        with pytest.raises(RefusedError, match=r"the placement stays as it is: .*there is no memory"):
            await agent(*asked)
        now = await status()
        assert "there is no memory" in now["refusedChange"]
        assert not now["pinned"]
        assert "there is no memory" in " ".join((await agent("status")).split())
        monkeypatch.undo()
        if asked[0] == "pin":
            await agent(*asked)
            now = await status()
            assert now["pinned"]
            assert "refusedChange" not in now
        await agent("resume")
        result = await run
    if asked[1] in ("--cut=2", "{file}"):
        assert_same_bits(plain_state(edge_config(*chosen)), result.module.state_dict())
