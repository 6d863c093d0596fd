"""A training that is cut short, on whichever side: one sentence, the documented exit code, and no session left behind."""

import asyncio
import json
import subprocess
import sys
from contextlib import contextmanager

import grpc
import pytest

from benchmarks.net.relay import Fault, Relay
from isthmus import run_training
from shared.client.config import TrainerAddressConfig
from shared.client.trainer import TrainerClient
from shared.config import LinkConfig
from shared.errors import ExitCode, UnreachableError
from shared.wire.isthmus.v1 import trainer_pb2 as pb
from tests.support.commands import MLP, agent_fails, assert_one_sentence, spoken
from tests.support.running import GIVE_UP_AT_ONCE, ROOT, Listening, edge_config, trainer_process
from tests.support.wire import RawPeer, open_request

Code = grpc.StatusCode

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]


@pytest.mark.usefixtures("serves_the_next")
def test_a_dataset_that_raises_in_the_middle(trainer):
    said = agent_fails(
        ExitCode.DATA,
        "sample 700 of Breaking cannot be read: OSError: the card was pulled out",
        flags=['data.train={factory="tests.support.samples:Breaking"}'],
        trainer=trainer,
    )
    assert "session opened" in said, "it failed while training, not before"


@pytest.mark.usefixtures("serves_the_next")
def test_a_dataset_that_raises_in_the_middle_of_an_evaluation(trainer):
    agent_fails(
        ExitCode.DATA,
        "sample 700 of Breaking cannot be read: OSError: the card was pulled out",
        flags=['data.test={factory="tests.support.samples:Breaking"}', "training.max_steps=2"],
        trainer=trainer,
    )


@contextmanager
def agent_in_training(address, *flags):
    """An agent process that has taken some steps; yields it with the id of its session."""
    flags = [*MLP, "training.epochs=100000", "log.format=json", *flags]
    process = subprocess.Popen(
        [sys.executable, "-m", "edge_agent.main", "run", f"--trainer={address}", *(f"--set={flag}" for flag in flags)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        session = next(
            event["at_trainers"]["trainer"]
            for line in process.stderr
            if line.startswith("{") and (event := json.loads(line))["event"] == "session opened"
        )
        asyncio.run(until_step(address, session, 5))
        yield process, session
    finally:
        process.kill()
        process.communicate()


async def until_step(address, session, step):
    async with asyncio.timeout(60), TrainerClient(TrainerAddressConfig(address=address), LinkConfig()) as client:
        while (await client.get_session(session)).next_step < step:
            pass


async def until_lost(address, session):
    async with asyncio.timeout(60), TrainerClient(TrainerAddressConfig(address=address), LinkConfig()) as client:
        while (await client.get_session(session)).attached:
            pass


@pytest.mark.usefixtures("serves_the_next")
def test_ctrl_c_ends_the_agent_and_frees_the_session(trainer):
    with agent_in_training(trainer) as (process, session):
        process.send_signal(2)
        out, err = process.communicate(timeout=60)
        assert process.returncode == ExitCode.INTERRUPTED
        assert "Traceback" not in out + err
        assert spoken(err.splitlines()[-1]).startswith("edge-agent: interrupted at step ")
        assert asyncio.run(next_step_of(trainer, session)) is None, "closed before the agent ended"


async def next_step_of(address, session):
    async with RawPeer(address) as peer:
        return await peer.next_step(session)


@pytest.mark.usefixtures("serves_the_next")
def test_an_agent_that_is_killed_gives_its_place_up_to_the_next(trainer):
    with agent_in_training(trainer) as (process, session):
        process.kill()
        process.communicate()
        asyncio.run(until_lost(trainer, session))


@pytest.mark.usefixtures("serves_the_next")
async def test_a_link_that_breaks_in_the_middle_of_a_training(trainer):
    host, port = trainer.split(":")
    for step in (1, 10, 40, 41, 42):
        async with RawPeer(trainer) as peer, Relay(host, int(port)) as relay:
            flags = [*MLP, GIVE_UP_AT_ONCE, "training.epochs=100000", f"trainer.address={relay.address}"]

            def breaks(progress, relay=relay, step=step):
                if progress.steps == step:
                    relay.inject(Fault.DROP)

            with pytest.raises(UnreachableError, match=f"the trainer at {relay.address}"):
                await run_training(edge_config(*flags), Listening(breaks))
            async with asyncio.timeout(60):
                while (
                    session := await peer.unary("OpenSession", open_request().SerializeToString())
                ).code is not Code.OK:
                    assert session.code is Code.RESOURCE_EXHAUSTED, session
            await peer.close_session(pb.OpenSessionResponse.FromString(session.responses[0]).session_id)


def test_a_trainer_that_stops_in_the_middle_of_a_training():
    with trainer_process("compute.threads=1") as (trainer_of_its_own, address):
        with agent_in_training(address, GIVE_UP_AT_ONCE) as (process, _):
            trainer_of_its_own.terminate()
            out, err = process.communicate(timeout=60)
        done = subprocess.CompletedProcess([], process.returncode, out, err)
        assert_one_sentence("edge-agent", done, ExitCode.UNREACHABLE, f"the trainer at {address}")
