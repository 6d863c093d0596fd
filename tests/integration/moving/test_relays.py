"""A trainer that the device cannot reach any more, and another candidate can: it is dialled through that one.

The trainers are processes of their own; the agent reaches one of them by a proxy that is cut, as the others do not. With
K = 0 what comes out is bit for bit what an undisturbed run gives.
"""

import asyncio
from contextlib import ExitStack, asynccontextmanager

import pytest

from benchmarks.net.relay import Fault, Relay
from edge_agent.training.choosers import Chooser
from edge_agent.training.events import HandedOver, Placed, Relayed, RolledBack
from isthmus import run_training
from shared.client.credentials import TrainerAccess
from shared.placement import held_blocks
from shared.training.step_log import check_steps
from tests.support.experiments import flags
from tests.support.peers.strangers import Doorkeeper
from tests.support.placement_kinds import PEERS_ALLOWED
from tests.support.plain import assert_same_bits, plain_state
from tests.support.running import Listening, edge_config, trainer_process

pytestmark = pytest.mark.usefixtures("one_thread")
STEPS, CUT_AT = 200, 40
CHOSEN = [
    *flags("cnn", "adamw"),
    f"training.max_steps={STEPS}",
    "training.epochs=40",
    "training.evaluate_every_epochs=0",
]
STALL = "link.stall_seconds=0.5"


@pytest.fixture(scope="module")
def expected(one_thread):  # noqa: ARG001 - what it does is what is needed of it
    return plain_state(edge_config(*CHOSEN))


class Ways:
    """The ways from the device to trainers: by a proxy for some, for others straight."""

    def __init__(self, monkeypatch):
        self.proxies = {}
        straight = TrainerAccess.channel

        def channel(access, address, options, socket=None):
            proxy = self.proxies.get(address) if socket is None else None
            return straight(access, address if proxy is None else proxy.address, options, socket)

        monkeypatch.setattr(TrainerAccess, "channel", channel)

    @asynccontextmanager
    async def proxied(self, address):
        """A proxy on the way to a trainer."""
        host, _, port = address.partition(":")
        async with Relay(host, int(port)) as proxy:
            self.proxies[address] = proxy
            yield proxy


@pytest.fixture
def ways(monkeypatch):
    return Ways(monkeypatch)


def cut(proxy):
    """Reset what there is, and answer nobody."""
    proxy.inject(Fault.DROP)
    proxy.inject(Fault.FREEZE)


def silence(proxy):
    """Carry nothing any more, and tell nobody."""
    proxy.inject(Fault.FREEZE)


class Seen:
    """The events of a run."""

    def __init__(self):
        self.events, self.holder = [], ""

    def __call__(self, event):
        self.events.append(event)
        if isinstance(event, Placed):
            self.holder = next(name for name in ("here", "there") if held_blocks(event.placement, name))

    def of(self, kind):
        return [event for event in self.events if isinstance(event, kind)]


def listening(seen, progressed):
    return Listening(progressed, others=of_interest(seen))


def of_interest(reader):
    return dict.fromkeys((HandedOver, Placed, Relayed, RolledBack), reader)


def at(step, act):
    """Return what acts once, when a run has done so many steps."""
    done = []

    def progressed(progress):
        if progress.steps >= step and not done:
            done.append(True)
            act()

    return progressed


def candidates(tmp_path, here, there, *more):
    trainers = f'trainers=[{{name="here", address="{here}"}}, {{name="there", address="{there}"}}]'
    kept = [f"checkpoints.location={tmp_path / 'edge'}", f"checkpoints.step_log={tmp_path / 'steps'}"]
    return edge_config(*CHOSEN, trainers, *kept, "checkpoints.every_steps=50", STALL, *more)


def assert_as_undisturbed(tmp_path, result, seen, expected):
    assert_same_bits(expected, result.module.state_dict())
    assert not seen.of(RolledBack), "nobody goes back"
    (log,) = (tmp_path / "steps").glob("*-edge.steps")
    assert check_steps(log) == STEPS
    assert not [line for line in log.read_text().splitlines() if line.startswith("back")], "no step is repeated"


@pytest.mark.slow
@pytest.mark.parametrize("lose", [cut, pytest.param(silence, marks=pytest.mark.full)])
async def test_a_trainer_out_of_reach_is_dialled_through_another_one_which_takes_over(lose, ways, tmp_path, expected):
    seen = Seen()
    with trainer_process(PEERS_ALLOWED) as (_, here), trainer_process(PEERS_ALLOWED) as (_, there):
        async with ways.proxied(here) as proxy:
            result = await run_training(
                candidates(tmp_path, here, there), listening(seen, at(CUT_AT, lambda: lose(proxy)))
            )
    assert seen.of(Relayed)[0].through == {"here": "there"}
    assert [event.by for event in seen.of(HandedOver)] == [Chooser.RELAY]
    assert seen.holder == "there"
    assert_as_undisturbed(tmp_path, result, seen, expected)


@pytest.mark.full
async def test_a_pinned_trainer_stays_and_is_reached_by_itself_when_it_is_back(ways, tmp_path, expected):
    seen, pinned = Seen(), []

    def progressed(progress):
        if progress.steps >= CUT_AT and not pinned:
            pinned.append("cut")
            cut(proxy)
        if progress.steps >= 3 * CUT_AT and len(pinned) == 1:
            pinned.append("back")
            ways.proxies.clear()  # it is in reach again, and the way through the other one is lost
            asyncio.get_running_loop().call_soon(drop_the_relay)

    def drop_the_relay():
        relaying.inject(Fault.DROP)
        relaying.inject(Fault.FREEZE)

    def opened(deployer):
        deployer.pinned_trainer = "here"

    with trainer_process(PEERS_ALLOWED) as (_, here), trainer_process(PEERS_ALLOWED) as (_, there):
        async with ways.proxied(here) as proxy, ways.proxied(there) as relaying:
            listener = Listening(progressed, opened, of_interest(seen))
            result = await run_training(candidates(tmp_path, here, there), listener)
    assert not seen.of(HandedOver)
    assert [event.through for event in seen.of(Relayed)] == [{"here": "there"}, {}]
    assert seen.holder == "here"
    assert_as_undisturbed(tmp_path, result, seen, expected)


@pytest.mark.slow
async def test_tls_and_token_are_those_of_the_trainer_at_the_end_of_the_way(ways, tmp_path, expected):
    seen = Seen()
    folders = [tmp_path / name for name in ("here", "there")]
    with ExitStack() as stack:
        addresses, tokens = [], []
        door = Doorkeeper(tmp_path)
        peers = [f"peers.tls.ca={tmp_path / 'ca.pem'}", f"peers.tls.certificate={tmp_path / 'edge.pem'}"]
        peers.append(f"peers.tls.key={tmp_path / 'edge.key'}")
        door.credentials()
        for folder in folders:
            folder.mkdir()
            subjects = Doorkeeper(folder)  # for its tokens alone: each trainer knows another one
            tls = [*door.tls_flags, f"auth.tokens={folder / 'tokens.toml'}", *peers]
            addresses.append(stack.enter_context(trainer_process(PEERS_ALLOWED, *tls))[1])
            token = folder / "token"
            token.touch(mode=0o600)
            token.write_text(subjects.tokens["ours"])
            tokens.append(token)
        here, there = addresses
        trainers = ", ".join(
            f'{{name="{name}", address="{address}", token_file="{token}"}}'
            for name, address, token in zip(("here", "there"), addresses, tokens, strict=True)
        )
        tls = [f"tls.{key}={tmp_path / name}" for key, name in (("ca", "ca.pem"), ("key", "edge.key"))]
        tls.append(f"tls.certificate={tmp_path / 'edge.pem'}")
        config = candidates(tmp_path, here, there, f"trainers=[{trainers}]", *tls)
        async with ways.proxied(here) as proxy:
            result = await run_training(config, listening(seen, at(CUT_AT, lambda: cut(proxy))))
    assert seen.of(Relayed)[0].through == {"here": "there"}
    assert seen.holder == "there"
    assert_as_undisturbed(tmp_path, result, seen, expected)


@pytest.mark.full
async def test_without_a_trainer_that_may_dial_it_the_run_waits_until_it_is_in_reach_again(ways, tmp_path, expected):
    seen, waiting = Seen(), []
    with trainer_process(PEERS_ALLOWED) as (_, here), trainer_process() as (_, there):
        async with ways.proxied(here) as proxy:

            def lose():
                cut(proxy)
                waiting.append(asyncio.get_running_loop().call_later(2.0, proxy.inject, Fault.RESUME))

            result = await run_training(candidates(tmp_path, here, there), listening(seen, at(CUT_AT, lose)))
    assert not seen.of(Relayed)
    assert seen.holder == "here"
    assert_as_undisturbed(tmp_path, result, seen, expected)


@pytest.mark.slow
async def test_if_the_trainer_on_the_way_dies_another_one_is_on_the_way(ways, tmp_path, expected):
    seen, names = Seen(), ("here", "there", "third")
    with ExitStack() as stack:
        each = {name: stack.enter_context(trainer_process(PEERS_ALLOWED)) for name in names}
        addresses = {name: address for name, (_, address) in each.items()}

        def note(event):
            seen(event)
            if isinstance(event, Relayed) and len(seen.of(Relayed)) == 1:
                each[event.through["here"]][0].kill()

        def opened(deployer):
            deployer.pinned_trainer = "here"

        trainers = ", ".join(f'{{name="{name}", address="{address}"}}' for name, address in addresses.items())
        config = candidates(tmp_path, addresses["here"], addresses["there"], f"trainers=[{trainers}]")
        async with ways.proxied(addresses["here"]) as proxy:
            result = await run_training(config, Listening(at(CUT_AT, lambda: cut(proxy)), opened, of_interest(note)))
    first, second, *_ = seen.of(Relayed)
    assert {first.through["here"], second.through["here"]} == {"there", "third"}
    assert_as_undisturbed(tmp_path, result, seen, expected)
