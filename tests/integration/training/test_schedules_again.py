"""Members that make their schedule from what they measure: it comes into force at one of their steps, and no bit changes."""

from contextlib import AsyncExitStack

import pytest

from benchmarks.net import Relay
from benchmarks.net.relay import Fault
from cloud_trainer.sessions.worker.session_worker import SessionWorker
from edge_agent.adaptation import polling, rescheduling
from edge_agent.training.events import MigrationFailed, Placed
from isthmus import run_training
from shared.concurrency.tasks import gathered
from shared.placement import Exchange
from tests.support.group_flags import SHARD, group_of, member_flags, trainers_at
from tests.support.group_members import group_state
from tests.support.plain import assert_same_bits
from tests.support.running import Listening, edge_config, running_trainer

pytestmark = pytest.mark.usefixtures("one_thread")
BLOCKS, STEPS = 4, 16
AGAIN = 'group.schedule="dynacomm"'
LAYERWISE = tuple((block, block + 1) for block in range(BLOCKS))


@pytest.fixture(autouse=True)
def hasty(monkeypatch):
    """Have members look often, and take few steps for enough."""
    monkeypatch.setattr(polling, "INTERVAL_SECONDS", 0.01)
    monkeypatch.setattr(rescheduling, "TELLING_STEPS", 3)


class Placements:
    """The placements that come into force at a member."""

    def __init__(self, also=lambda _placement: None):
        """also: called with each of them."""
        self.seen, self.failed = [], []

        def place(event):
            self.seen.append(event.placement)
            also(event.placement)

        others = {Placed: place, MigrationFailed: self.failed.append}
        self.listen = Listening(others=others)


async def far(stack, server):
    """Return a relay to a server, a link on which a message takes long."""
    host, _, port = server.address.rpartition(":")
    rate = {"uplink_bits_per_second": 1e8, "downlink_bits_per_second": 1e8}
    return await stack.enter_async_context(Relay(host, int(port), one_way_delay_seconds=0.01, **rate))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("names", "more"),
    [
        (["near"], []),
        pytest.param(["near"], ["deployment.cut=2", 'deployment.codec="raw"'], marks=pytest.mark.full),
        pytest.param(["near", "other"], [], marks=pytest.mark.full),
    ],
)
async def test_a_member_makes_its_schedule_again_and_no_bit_changes(names, more):
    more = [SHARD, f"training.max_steps={STEPS}", "training.epochs=100", *more]
    async with AsyncExitStack() as stack:
        servers = {name: await stack.enter_async_context(running_trainer(*group_of(2))) for name in names}
        behind = {name: (await far(stack, server)).address for name, server in servers.items()}
        direct = {name: server.address for name, server in servers.items()}
        configs = [
            edge_config(*member_flags(0, size=2, more=more), *trainers_at(**direct)),
            edge_config(*member_flags(1, size=2, more=[*more, AGAIN]), *trainers_at(**behind)),
        ]
        seen = Placements(), Placements()
        runs = (run_training(config, each.listen) for config, each in zip(configs, seen, strict=True))
        states = [result.module.state_dict() for result in await gathered(*runs)]
    still, changed = seen
    assert len(still.seen) == 1, "the other member's placement stays"
    first, *later = changed.seen
    assert first.exchange == Exchange(tuple(reversed(LAYERWISE)), LAYERWISE, barrier=True)
    assert later, "messages are dear, so blocks travel together"
    assert len(later[0].exchange.pull) < BLOCKS
    assert [placed.version for placed in changed.seen] == list(range(len(changed.seen)))
    assert not changed.failed
    for state in states:
        assert_same_bits(group_state(configs), state)


@pytest.mark.slow
@pytest.mark.parametrize("lost", ["the answer of a trainer that has agreed", "the first link of another schedule"])
async def test_a_change_whose_link_is_lost_comes_into_force_all_the_same(lost, monkeypatch):
    more = [SHARD, f"training.max_steps={STEPS}", "training.epochs=100"]
    dropped = []

    def drop(placement):
        if placement.version == 1 and not dropped:
            dropped.append(placement)
            relay.inject(Fault.DROP)

    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(running_trainer(*group_of(2)))
        relay = await far(stack, server)
        if lost == "the answer of a trainer that has agreed":
            commit = SessionWorker.commit

            async def committed(worker, judged, *of_commit):
                await commit(worker, judged, *of_commit)
                drop(judged.placement)

            monkeypatch.setattr(SessionWorker, "commit", committed)
            changed = Placements()
        else:
            changed = Placements(drop)
        configs = [
            edge_config(*member_flags(0, size=2, more=more), f"trainer.address={server.address}"),
            edge_config(*member_flags(1, size=2, more=[*more, AGAIN]), f"trainer.address={relay.address}"),
        ]
        runs = run_training(configs[0]), run_training(configs[1], changed.listen)
        states = [result.module.state_dict() for result in await gathered(*runs)]
    assert dropped
    assert 1 in [placed.version for placed in changed.seen]
    for state in states:
        assert_same_bits(group_state(configs), state)
