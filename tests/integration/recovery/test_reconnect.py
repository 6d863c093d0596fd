"""Invariants 1 and 2 across lost links: a stream is resumed where it was, and no step is lost, repeated or changed."""

import asyncio
import random

import grpc
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.net.relay import Fault, Relay
from cloud_trainer.rpc.link_rpc import LinkRpc
from edge_agent.sessions.trainer_worker import TrainerWorker
from isthmus import run_training
from shared.errors import ProtocolError, RefusedError, UnreachableError
from tests.support.examples import examples
from tests.support.experiments import flags
from tests.support.plain import assert_same_bits, plain_state
from tests.support.running import Listening, cut_at, edge_config, running_trainer


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


async def train_through(faults, *chosen, moves=()):
    """Train through a relay that does `faults[step]` when that step is done; returns the result and the trainer."""
    deployers = []

    async with running_trainer() as server:
        host, _, port = server.address.partition(":")
        async with Relay(host, int(port)) as relay:

            def on_progress(progress):
                for fault in faults.get(progress.steps, ()):
                    if fault is Fault.CORRUPT:
                        relay.uplink.corrupt_next(200)
                    else:
                        relay.inject(fault)
                if progress.steps in moves:
                    cut_at(deployers[-1], moves[progress.steps])

            config = edge_config(
                *chosen, f"trainer.address={relay.address}", "trainer.give_up_seconds=60", "link.stall_seconds=1"
            )
            return await run_training(config, Listening(on_progress, deployers.append)), server


def sample(server, name):
    return server.metrics.registry.get_sample_value(name)


@pytest.mark.slow
@settings(max_examples=examples(10), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    model=st.sampled_from(["cnn", "mlp"]),
    cut=st.sampled_from([1, 3]),
    faults=st.dictionaries(
        st.integers(1, 19), st.sampled_from([[Fault.DROP], [Fault.CORRUPT]]), min_size=1, max_size=4
    ),
)
def test_a_link_that_is_lost_changes_no_bit(model, cut, faults):
    chosen = [*flags(model, "adam"), "training.max_steps=20", f"deployment.cut={cut}"]
    result, server = asyncio.run(train_through(faults, *chosen))
    assert result.summary.steps == 20
    assert sample(server, "isthmus_steps_total") == 20, "the trainer has applied each step once"
    assert_same_bits(plain_state(edge_config(*chosen)), result.module.state_dict())


@pytest.mark.first_case
@pytest.mark.parametrize("cut", [1, 3])
async def test_a_link_that_is_lost_under_staleness_loses_and_repeats_no_step(cut, edge_metrics):
    chosen = [
        *flags("cnn", "sgd"),
        f"deployment.cut={cut}",
        "deployment.staleness=4",
        "deployment.codec=uniform8-stochastic",
    ]
    steps = random.Random(5).sample(range(1, 29), 6)
    result, server = await train_through({step: [Fault.DROP] for step in steps}, *chosen)
    assert result.summary.steps == 30
    assert sample(server, "isthmus_steps_total") == 30
    lost = edge_metrics[-1].registry.get_sample_value("isthmus_link_losses_total", {"worker": "trainer"})
    assert 1 <= lost <= len(steps)
    assert torch.isfinite(torch.tensor(result.summary.train_loss))


async def test_a_frozen_edge_survives_a_lost_link():
    chosen = [*flags("mlp", "sgd"), 'model.frozen=["0"]', "deployment.cut=1"]
    result, server = await train_through({5: [Fault.DROP], 17: [Fault.DROP]}, *chosen)
    assert result.summary.bytes_down == 0, "nothing learns on the edge"
    assert sample(server, "isthmus_steps_total") == 30, "the trainer has applied each step once"
    assert_same_bits(plain_state(edge_config(*chosen)), result.module.state_dict())


async def test_a_change_of_codec_and_a_migration_survive_a_lost_link():
    chosen = [*flags("cnn", "adam"), "deployment.cut=1", "deployment.staleness=[[0, 0], [1, 0]]"]
    # The trainer always has a block: one without any that is away at the moment of a change is not waited for.
    result, _ = await train_through({step: [Fault.DROP] for step in (4, 5, 12, 13)}, *chosen, moves={4: 3, 12: 2})
    assert result.summary.edge_blocks == 2
    assert_same_bits(plain_state(edge_config(*chosen)), result.module.state_dict())


@pytest.mark.first_case
@pytest.mark.parametrize(
    ("failure", "cut"),
    [(RefusedError("no room"), 1), (ProtocolError("a message is damaged"), 3)],
    ids=["refused", "damaged"],
)
async def test_a_migration_that_fails_once_costs_no_step_and_its_links_stay(monkeypatch, failure, cut):
    """A refusal leaves the cut where it is; what may pass is tried again once all trainers are joined."""
    failures, commit = [failure], TrainerWorker.commit

    async def failing(*arguments):
        if failures:
            raise failures.pop()
        return await commit(*arguments)

    monkeypatch.setattr(TrainerWorker, "commit", failing)
    chosen = [*flags("cnn", "adam"), "deployment.cut=1"]
    result, server = await train_through({}, *chosen, moves={4: 3})
    assert (result.summary.edge_blocks, failures) == (cut, [])
    assert sample(server, "isthmus_steps_total") == 30
    assert_same_bits(plain_state(edge_config(*chosen)), result.module.state_dict())


@pytest.mark.slow
async def test_a_half_open_link_is_noticed_by_missing_progress():
    chosen = [*flags("cnn", "sgd"), "deployment.cut=2"]
    async with running_trainer() as server:
        host, _, port = server.address.partition(":")
        async with Relay(host, int(port)) as relay:

            def on_progress(progress):
                if progress.steps == 7:
                    relay.inject(Fault.FREEZE)
                    # Both ends stay open without a sign; when bytes flow again, those of the old streams are late.
                    asyncio.get_running_loop().call_later(3.0, relay.inject, Fault.RESUME)

            config = edge_config(
                *chosen, f"trainer.address={relay.address}", "trainer.give_up_seconds=60", "link.stall_seconds=0.5"
            )
            result = await run_training(config, Listening(on_progress))
    assert_same_bits(plain_state(edge_config(*chosen)), result.module.state_dict())


async def test_a_link_that_meets_the_very_end_of_a_trainer_is_dialled_again(monkeypatch):
    """gRPC ends a call that comes while its server stops, and before it has said so, with CANCELLED."""
    chosen = [*flags("mlp", "sgd"), "deployment.cut=2", "training.max_steps=20"]
    link, dialled = LinkRpc.link, []

    async def stopping_at_the_second(calls, requests, context):
        dialled.append(context)
        if len(dialled) == 2:
            await context.abort(grpc.StatusCode.CANCELLED, "CANCELLED")
        await link(calls, requests, context)

    monkeypatch.setattr(LinkRpc, "link", stopping_at_the_second)
    result, _ = await train_through({7: [Fault.DROP]}, *chosen)
    assert len(dialled) == 3
    assert_same_bits(plain_state(edge_config(*chosen)), result.module.state_dict())


async def test_an_agent_gives_up_after_the_time_that_it_was_given():
    chosen = [*flags("mlp", "sgd"), "training.epochs=1000", "trainer.give_up_seconds=0.3", "training.max_steps=100000"]
    async with running_trainer() as server:

        def on_progress(progress):
            if progress.steps == 5:
                stopping.append(asyncio.get_running_loop().create_task(server.stop()))

        stopping = []
        with pytest.raises(UnreachableError, match=f"the trainer at {server.address}"):
            await run_training(edge_config(*chosen, f"trainer.address={server.address}"), Listening(on_progress))
        await asyncio.gather(*stopping)
