"""Several agents at once on one trainer: each as exact as alone, whatever another does, and each with its fair share."""

import asyncio
from contextlib import suppress

import grpc
import pytest

from isthmus import run_training
from shared.client.trainer import TrainerClient
from shared.errors import IsthmusError
from shared.transport.stream.packets import serialize
from tests.support.plain import assert_same_bits, plain_state
from tests.support.running import Listening, edge_config, running_trainer
from tests.support.wire import RawPeer, batch_packets, begin_link

pytestmark = pytest.mark.usefixtures("one_thread")

STEPS = 30
FLAT_DIGITS = 'data.train={factory="tests.support.samples:FlatDigits"}'
AGENTS = {
    "perceptron": ['model.factory="shared.model.zoo:mlp"', FLAT_DIGITS, "deployment.cut=1"],
    "recurrent": [
        'model.factory="shared.model.zoo:bilstm"',
        "model.kwargs={vocabulary=50, embedding=8, hidden=8, layers=2, classes=4, dropout=0.2}",
        'data.train={factory="tests.support.samples:Sequences"}',
        'training.optimizer={name="adam", learning_rate=0.01}',
        "training.seed=7",
        "deployment.cut=2",
    ],
}
FAILING = [
    'model.factory="tests.support.models.failing:failing"',
    'model.kwargs={block=2, when="backward"}',
    FLAT_DIGITS,
    "deployment.cut=1",
]


def config_of(flags, server=None, steps=STEPS):
    address = [f"trainer.address={server.address}"] if server is not None else []
    return edge_config(*flags, *address, f"training.max_steps={steps}", "training.epochs=100")


class Watched:
    """Runs agents at once on one trainer, and looks at every step of each at what the trainer's metrics say of it."""

    def __init__(self, server):
        self._server = server
        self.sessions = {}
        self.most_open = 0

    async def run(self, name, config):
        def look(progress):
            if progress.session is None or progress.steps in (0, progress.total_steps):
                return  # not there yet, or perhaps closed already
            self.sessions[name] = progress.session
            self.most_open = max(self.most_open, int(self._value("isthmus_sessions")))
            (session,) = (one.id for one in self._server.service.sessions.built if one.run_id == progress.session)
            steps = self._value("isthmus_session_steps_total", session=session)
            assert progress.steps <= steps <= progress.steps + 1, "K is 0, and nobody else's steps are counted"

        return await run_training(config, Listening(look))

    def errors(self):
        """Count the calls that ended in an error, by status."""
        samples = [
            sample
            for family in self._server.metrics.registry.collect()
            for sample in family.samples
            if sample.name == "isthmus_errors_total"
        ]
        return {sample.labels["code"]: sample.value for sample in samples if sample.value}

    def _value(self, name, **labels):
        return self._server.metrics.registry.get_sample_value(name, labels)


@pytest.fixture(scope="module")
def alone(one_thread):  # noqa: ARG001 - what it does is what is needed of it
    return {name: plain_state(config_of(flags)) for name, flags in AGENTS.items()}


@pytest.fixture
def begin_together(monkeypatch):
    """Let no agent train before all of them can: otherwise the first might be done before the last has a session."""
    join = TrainerClient.join_session

    def when_ready(ready):
        async def join_when_ready(self, *arguments):
            await ready()
            return await join(self, *arguments)

        monkeypatch.setattr(TrainerClient, "join_session", join_when_ready)

    return when_ready


async def test_each_is_as_exact_as_alone(alone, begin_together):
    begin_together(asyncio.Barrier(3).wait)
    async with running_trainer() as server:
        watched = Watched(server)
        both = {**AGENTS, "another perceptron": AGENTS["perceptron"]}
        results = await asyncio.gather(*(watched.run(name, config_of(flags, server)) for name, flags in both.items()))
        errors = watched.errors()
    for name, result in zip(both, results, strict=True):
        assert_same_bits(alone[name.removeprefix("another ")], result.module.state_dict())
    assert watched.most_open == len(set(watched.sessions.values())) == 3, "they were there at the same time"
    assert errors == {}


@pytest.mark.slow
async def test_one_whose_model_fails_is_alone_with_it(alone):
    async with running_trainer() as server:
        watched = Watched(server)
        agents = {**AGENTS, "failing": FAILING}
        *right, failed = await asyncio.gather(
            *(watched.run(name, config_of(flags, server)) for name, flags in agents.items()), return_exceptions=True
        )
        assert watched.errors() == {"INVALID_ARGUMENT": 1}, "its step"
        assert server.metrics.registry.get_sample_value("isthmus_sessions") == 0
    assert isinstance(failed, IsthmusError), failed
    assert "failed with RuntimeError: the backward is not written yet" in str(failed)
    for name, result in zip(AGENTS, right, strict=True):
        assert_same_bits(alone[name], result.module.state_dict())


async def harass(peer, ends, begun):
    """Break the contract in one session after the other, without end."""
    while True:
        session = await peer.open()
        packets = [serialize(packet) for packet in batch_packets(0)]
        labels_that_cannot_be = [serialize(packet) for packet in batch_packets(0, labels=[10**6] * 8)]
        for term, batch in enumerate(([packets[0][:-3]], packets[2:], [*packets, *packets], labels_that_cannot_be), 1):
            await peer.join(session, term)
            end = await peer.streamed("Link", [*begin_link(session, term=term), *batch])
            ends.append(end.code)
        await peer.close_session(session)
        begun.set()


@pytest.mark.slow
async def test_one_who_breaks_the_contract_all_the_time_disturbs_nobody(alone, begin_together):
    begun = asyncio.Event()
    begin_together(begun.wait)
    async with running_trainer() as server, RawPeer(server.address) as peer:
        watched, ends = Watched(server), []
        hostile = asyncio.create_task(harass(peer, ends, begun))
        results = await asyncio.gather(*(watched.run(name, config_of(flags, server)) for name, flags in AGENTS.items()))
        hostile.cancel()
        with suppress(asyncio.CancelledError):
            await hostile
    for name, result in zip(AGENTS, results, strict=True):
        assert_same_bits(alone[name], result.module.state_dict())
    assert len(ends) > 4, "the bad peer was there, and went on"
    assert set(ends) <= {
        grpc.StatusCode.DATA_LOSS,
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.NOT_FOUND,
    }


@pytest.mark.slow
async def test_two_that_are_equal_have_equal_shares(begin_together):
    begin_together(asyncio.Barrier(2).wait)
    steps = {"one": 0, "other": 0}
    both_from, at_first_end = {}, {}

    def follow(name):
        def look(progress):
            steps[name] = progress.steps
            if not both_from and min(steps.values()) > 0:
                both_from.update(steps)
            if progress.steps == progress.total_steps and not at_first_end:
                at_first_end.update(steps)

        return look

    async with running_trainer() as server:
        config = config_of(AGENTS["perceptron"], server, steps=300)
        await asyncio.gather(*(run_training(config, Listening(follow(name))) for name in steps))
    made = sorted(at_first_end[name] - both_from[name] for name in steps)
    assert made[1] > 50, "they were there at the same time for long enough to compare"
    assert made[1] <= 2 * made[0], (both_from, at_first_end)
