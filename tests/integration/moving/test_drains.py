"""Trainers that are told to stop: the agents hand over to another candidate, and no step is repeated.

Trainers and agents are processes of their own. With K = 0 what comes out is bit for bit what an undisturbed run gives.
"""

import asyncio
import json
import signal
from contextlib import ExitStack

import grpc
import pytest
from safetensors.torch import load_file

from cloud_trainer.sessions.session import Session
from cloud_trainer.sessions.worker.session_worker import SessionWorker
from isthmus import run_training
from shared.errors import ExitCode
from shared.training.step_log import check_steps
from shared.transport.rpc.status import StatusError
from tests.support.experiments import flags
from tests.support.placement_kinds import PEERS_ALLOWED
from tests.support.plain import assert_same_bits, plain_state
from tests.support.running import (
    Listening,
    agent_process,
    edge_config,
    held_port,
    running_trainer,
    trainer_process,
)

pytestmark = pytest.mark.usefixtures("one_thread")
STEPS = 240
CHOSEN = [
    *flags("cnn", "adamw"),
    f"training.max_steps={STEPS}",
    "training.epochs=40",
    "training.evaluate_every_epochs=0",
]
WITHIN_SECONDS = 30


@pytest.fixture(scope="module")
def expected(one_thread):  # noqa: ARG001 - what it does is what is needed of it
    return plain_state(edge_config(*CHOSEN))


@pytest.mark.slow
@pytest.mark.parametrize("agents", [1, pytest.param(8, marks=pytest.mark.full)])
def test_agents_of_a_trainer_that_stops_train_elsewhere_and_repeat_no_step(agents, tmp_path, expected):
    room = f"server.max_sessions={agents}"
    stop = f"server.stop_seconds={WITHIN_SECONDS}"
    with ExitStack() as stack:
        stopped, here = stack.enter_context(trainer_process(PEERS_ALLOWED, room, stop))
        _, there = stack.enter_context(trainer_process(PEERS_ALLOWED, room))
        trainers = f'trainers=[{{name="here", address="{here}"}}, {{name="there", address="{there}"}}]'
        folders = [tmp_path / str(number) for number in range(agents)]
        running = [
            stack.enter_context(
                agent_process(
                    *CHOSEN,
                    trainers,
                    f"checkpoints.location={folder / 'kept'}",
                    f"checkpoints.step_log={folder / 'steps'}",
                    "checkpoints.every_steps=20",
                    output=folder,
                )
            )
            for folder in folders
        ]
        for _, said in running:
            said.first_event("checkpoint at every worker")
        stopped.send_signal(signal.SIGTERM)
        assert stopped.wait(WITHIN_SECONDS) == ExitCode.OK
        for folder, (process, said) in zip(folders, running, strict=True):
            assert process.wait(120) == ExitCode.OK
            said.join()
            events = {event["event"] for event in said.rest()}
            assert "went back to a checkpoint" not in events
            blocks = json.loads((folder / "summary.json").read_text())["blocks"]
            assert {block["worker"] for block in blocks} == {"edge", "there"}
            assert [check_steps(log) for log in (folder / "steps").glob("*-edge.steps")] == [STEPS]
            assert_same_bits(expected, load_file(folder / "model.safetensors"))


@pytest.mark.full
def test_without_another_candidate_in_reach_the_run_waits_until_the_trainer_is_back(tmp_path, expected):
    with held_port() as port, held_port() as nobody:
        listen = f"server.listen=127.0.0.1:{port}", f"checkpoints.location={tmp_path / 'trainer'}"
        trainers = (
            f'trainers=[{{name="here", address="127.0.0.1:{port}"}}, {{name="away", address="127.0.0.1:{nobody}"}}]'
        )
        kept = f"checkpoints.location={tmp_path / 'kept'}", "checkpoints.every_steps=20"
        with ExitStack() as stack:
            with trainer_process(*listen) as (stopped, _):
                process, said = stack.enter_context(agent_process(*CHOSEN, trainers, *kept, output=tmp_path))
                said.first_event("checkpoint at every worker")
                stopped.send_signal(signal.SIGTERM)
                assert stopped.wait(WITHIN_SECONDS) == ExitCode.OK
            with trainer_process(*listen):
                assert process.wait(120) == ExitCode.OK
        assert_same_bits(expected, load_file(tmp_path / "model.safetensors"))


@pytest.mark.slow
@pytest.mark.parametrize("call", ["prepare", "commit"])
async def test_a_successor_that_refuses_in_the_handover_costs_no_step(call, tmp_path, monkeypatch):
    """The run waits for the trainer that stops, which has a checkpoint of the step at which it was to be left."""

    async def refuses(_ended):
        raise StatusError(grpc.StatusCode.PERMISSION_DENIED, "not this one")

    await no_step_is_lost(SessionWorker, call, refuses, tmp_path, monkeypatch)


@pytest.mark.slow
async def test_a_run_that_ends_while_it_leaves_a_trainer_that_stops_loses_no_step(tmp_path, monkeypatch):
    await no_step_is_lost(Session, "join", asyncio.Event.wait, tmp_path, monkeypatch)


async def no_step_is_lost(owner, call, hinder, tmp_path, monkeypatch):
    """Have a trainer stop in the middle of a run, whose successor hinders one of the calls of the handover. It comes back.

    owner: class that has the call. hinder: gets an event that is set once all steps are done.
    """
    slow = 'data.train={factory="tests.support.samples:Slow", kwargs={seconds=0.0005}}'
    chosen = [*flags("mlp", "adamw"), "training.max_steps=60", "training.epochs=40", slow]
    chosen += ["training.evaluate_every_epochs=0", "checkpoints.every_seconds=1000"]
    place = f"checkpoints.location={tmp_path / 'trainer'}"
    steps, loop, carried_out = [], asyncio.get_running_loop(), getattr(owner, call)
    begun, ended, hindered = asyncio.Event(), asyncio.Event(), []

    def on_progress(progress):
        steps.append(progress.steps)
        for event, step in ((begun, 10), (ended, 60)):
            if progress.steps == step:
                loop.call_soon_threadsafe(event.set)

    async with running_trainer(PEERS_ALLOWED) as there:

        async def hindered_there(called, *arguments):
            if any(called in (session, session.worker) for session in there.service.sessions.built):
                hindered.append(called)
                await hinder(ended)
            return await carried_out(called, *arguments)

        monkeypatch.setattr(owner, call, hindered_there)
        async with running_trainer(PEERS_ALLOWED, place, f"server.stop_seconds={WITHIN_SECONDS}") as here:
            trainers = (
                f'trainers=[{{name="here", address="{here.address}"}}, {{name="there", address="{there.address}"}}]'
            )
            config = edge_config(*chosen, trainers, f"checkpoints.location={tmp_path / 'edge'}")
            training = asyncio.create_task(run_training(config, Listening(on_progress)))
            await begun.wait()
            await here.stop()
        async with running_trainer(PEERS_ALLOWED, place, f"server.listen={here.address}"):
            result = await training
    assert hindered
    assert steps == sorted(steps), "none is repeated"
    assert_same_bits(plain_state(edge_config(*chosen)), result.module.state_dict())
