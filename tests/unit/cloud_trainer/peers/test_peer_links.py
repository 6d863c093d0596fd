"""Workers that dial each other over real sockets: a chain of three, lost links, and peers that are gone."""

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager

import grpc
import pytest

from cloud_trainer.config import PeersConfig
from cloud_trainer.peers.dialer import PeerDialer
from cloud_trainer.peers.peer_links import PeerLinks
from shared.config import LinkConfig
from shared.errors import ModelError, ProtocolError
from shared.events.worker import Delivered
from shared.placement import Placement, Rows, Source, Tile
from shared.transport.rpc.status import Kind, StatusError
from shared.wire.isthmus.v1.tensor_pb2 import Role
from shared.wire.isthmus.v1.trainer_pb2 import Peer
from tests.support.linked import LinkedSession
from tests.support.placed import batch_of, built, recipe, state_of
from tests.support.plain import assert_same_bits
from tests.support.plain_tiles import PlainTiles
from tests.support.stand_ins.link_server import SESSION, TERM, serving_links

pytestmark = pytest.mark.usefixtures("one_thread")
Code = grpc.StatusCode
WHOLE = Rows(0, 4)
CHAIN = Placement(
    version=2,
    blocks=4,
    batch_size=4,
    workers=("edge", "near", "far"),
    tiles=(Tile("edge", 0, 1, WHOLE), Tile("near", 1, 3, WHOLE), Tile("far", 3, 4, WHOLE)),
    sources=(Source("edge", WHOLE),),
    labels=("far",),
)
STEPS = 4


PAIRS = [("edge", "near"), ("edge", "far"), ("near", "far")]
"""Pairs of dialler and listener: features go along the chain, and labels from one end to the other."""


class Chain:
    """A session whose workers are linked over sockets. Each worker stands for a trainer of its own."""

    def __init__(self, session, servers):
        self.session = session
        self.servers = servers
        self.links = {}
        self.delivered = set()
        """Pairs of dialler and listener over whose link something was sent and acknowledged."""

    def peer(self, dialer, listener, address=None):
        """Return what the agent would tell `dialer` about `listener`."""
        server = self.servers[listener]
        ticket = server.tickets.issue(TERM, [dialer])[dialer]
        return Peer(worker=listener, address=address or server.address, session_id=SESSION, ticket=ticket)

    def dial(self, worker, peers):
        def note(event):
            assert event.seconds > 0
            self.delivered.add((worker, event.peer, event.tensor.key.role))

        self.session.events[worker].subscribe(Delivered, note)
        self.links[worker] = links = PeerLinks(self.session.workers[worker], peers, TERM, dialer())
        links.dial()
        return links

    def dial_all(self):
        told = {listener: server.tickets.issue(TERM, CHAIN.workers) for listener, server in self.servers.items()}
        for worker in ("edge", "near"):
            peers = [
                Peer(
                    worker=listener,
                    address=self.servers[listener].address,
                    session_id=SESSION,
                    ticket=told[listener][worker],
                )
                for dialer, listener in PAIRS
                if dialer == worker
            ]
            self.dial(worker, peers)

    async def train(self, batches):
        """Feed all batches and wait until every worker is done. Raises the error of a link or a worker."""
        self.session.feed("edge", batches)
        done = asyncio.create_task(self.session.all_done(len(batches)))
        failures = [links.failure for links in self.links.values()]
        try:
            await asyncio.wait({done, *failures}, return_when=asyncio.FIRST_COMPLETED)
            for failure in failures:
                if failure.done():
                    failure.result()
            await done
        finally:
            done.cancel()
            await asyncio.gather(done, return_exceptions=True)


def dialer(*allowed):
    peers = PeersConfig(allowed=allowed or ("127.0.0.1:*",))
    return PeerDialer(peers, LinkConfig(chunk_bytes=1024), insecure=False)


@asynccontextmanager
async def standing(module=None, losses=()):
    """Build a chain whose links are not dialled yet. losses: number of packets after which each link to `far` is lost."""
    session = LinkedSession(module or built("dropping"), CHAIN, recipe("adam"))
    async with AsyncExitStack() as stack:
        servers = {
            "near": await stack.enter_async_context(serving_links(session.workers["near"])),
            "far": await stack.enter_async_context(serving_links(session.workers["far"], losses)),
        }
        chain = Chain(session, servers)
        for run in session.workers.values():
            run.start()
        try:
            yield chain
        finally:
            for links in chain.links.values():
                await links.stop()
            for run in session.workers.values():
                await run.stop()


def batches():
    return [batch_of(step, 4) for step in range(STEPS)]


def assert_as_in_one_process(module, session):
    plain = PlainTiles(list(module), CHAIN, recipe("adam"))
    for step, batch in enumerate(batches()):
        plain.step(step, *batch)
    assert_same_bits(dict(module.state_dict()), state_of(session.chains, CHAIN))


async def test_a_chain_trains_as_one_process_and_its_links_end_well():
    module = built("dropping")
    async with standing(module) as chain:
        chain.dial_all()
        await chain.train(batches())
        for links in chain.links.values():
            await links.stop()
        assert [(server.opened, server.ended) for server in chain.servers.values()] == [(1, 1), (2, 2)]
        assert_as_in_one_process(module, chain.session)
        assert chain.delivered == {
            ("edge", "near", Role.ROLE_FEATURE),
            ("edge", "far", Role.ROLE_LABEL),
            ("near", "far", Role.ROLE_FEATURE),
        }


async def test_lost_links_are_dialled_again_with_the_next_ticket_and_cost_no_bit():
    module = built("dropping")
    async with standing(module, losses=[3, 9, 0, 1, 20]) as chain:
        chain.dial_all()
        await chain.train(batches())
        far = chain.servers["far"]
        assert far.opened > 2
        assert len(far.tickets) == len(CHAIN.workers), "each link has one, however often it was opened"
        assert_as_in_one_process(module, chain.session)


async def test_a_peer_that_cannot_be_reached_is_dialled_until_it_can():
    async with standing() as chain:
        chain.servers["far"].refusal = (Code.UNAVAILABLE, "not now")
        chain.dial_all()
        refused = chain.servers["far"].refused
        for _ in range(3):
            await refused.wait()
            refused.clear()
        chain.servers["far"].refusal = None
        await chain.train(batches())


async def test_damage_is_mended_once_and_repeated_damage_at_the_same_place_is_an_error():
    async with standing() as chain:
        far = chain.servers["far"]
        far.refusal = (Code.DATA_LOSS, "damaged message")
        chain.dial_all()
        await far.refused.wait()
        far.refusal = None
        await chain.train(batches()[:1])
        far.refusal = (Code.DATA_LOSS, "damaged message")
        far.lose()
        with pytest.raises(StatusError, match=r"worker 'far' cannot go on: .*damaged message"):
            await chain.train(batches())


@pytest.mark.parametrize(
    ("code", "told", "kind"),
    [
        (Code.NOT_FOUND, Code.FAILED_PRECONDITION, Kind.LOST),
        (Code.UNAUTHENTICATED, Code.PERMISSION_DENIED, Kind.ACCESS),
        (Code.FAILED_PRECONDITION, Code.FAILED_PRECONDITION, None),
        (Code.INVALID_ARGUMENT, Code.INVALID_ARGUMENT, None),
        (Code.INTERNAL, Code.FAILED_PRECONDITION, Kind.FAILED),
        (Code.ABORTED, Code.ABORTED, None),
    ],
)
async def test_an_error_that_dialling_again_cannot_mend_is_one_sentence_that_names_the_peer(code, told, kind):
    async with standing() as chain:
        chain.servers["far"].refusal = (code, "it is gone")
        chain.dial_all()
        with pytest.raises(StatusError, match=r"the link to worker 'far' cannot go on: .*it is gone") as raised:
            await chain.train(batches())
        assert (raised.value.code, raised.value.kind) == (told, kind)


async def test_a_peer_that_has_lost_its_session_in_the_middle_of_a_training_is_given_up():
    async with standing() as chain:
        far = chain.servers["far"]
        chain.dial_all()
        await chain.train(batches()[:1])
        far.refusal = (Code.NOT_FOUND, "there is no session")
        far.lose()
        with pytest.raises(StatusError, match=r"worker 'far' cannot go on: .*there is no session"):
            await chain.train(batches())


async def test_a_session_that_is_closed_for_good_at_a_peer_is_told_as_such():
    async with standing() as chain:
        chain.dial_all()
        await chain.train(batches()[:1])
        chain.servers["far"].lose(Code.NOT_FOUND)
        with pytest.raises(StatusError, match="worker 'far' cannot go on") as raised:
            await chain.train(batches())
        assert raised.value.code is Code.NOT_FOUND


async def test_a_ticket_that_is_used_elsewhere_first_ends_the_link():
    async with standing() as chain:
        peer = chain.peer("near", "far")
        first, second = chain.dial("near", [peer]), chain.dial("near", [peer])
        done, _ = await asyncio.wait({first.failure, second.failure}, return_when=asyncio.FIRST_COMPLETED)
        assert len(done) == 1
        with pytest.raises(StatusError, match="worker 'far' cannot go on"):
            await done.pop()
        await first.stop()


async def test_a_worker_that_cannot_compute_says_so_itself():
    async with standing() as chain:
        chain.dial_all()
        chain.session.chains["far"].blocks[3].module.register_forward_hook(lambda *_: 1 / 0)
        chain.session.chains["near"].blocks[1].module.register_forward_hook(lambda *_: 1 / 0)
        with pytest.raises(ModelError, match="division by zero"):
            await chain.train(batches())


async def test_nobody_is_dialled_whose_address_is_not_allowed_or_to_whom_there_is_no_link():
    async with standing() as chain:
        run, far = chain.session.workers["near"], chain.peer("near", "far")
        with pytest.raises(StatusError, match=r"may not dial .*\(peers.allowed\)") as refused:
            PeerLinks(run, [far], TERM, dialer("127.0.0.1:1", "localhost:*"))
        assert refused.value.code is Code.PERMISSION_DENIED
        for wrong, says in (
            ([Peer(worker="cloud", address=far.address)], "no link between 'near' and 'cloud'"),
            ([], "0 peers are named"),
            ([far, far], "2 peers are named"),
        ):
            with pytest.raises(ProtocolError, match=says):
                PeerLinks(run, wrong, TERM, dialer())
        assert chain.servers["far"].opened == 0
