"""Many callers at one time hold up no health check: relays into ports that never read, and members that open sessions."""

import asyncio
import threading
from contextlib import AsyncExitStack, suppress

import grpc
import pytest

from cloud_trainer.config import PeersConfig
from isthmus import run_training
from shared.client.relay_socket import relay_call
from shared.transport.rpc.carried_bytes import CARRIED_BYTES, WAITING_BYTES
from shared.wire.isthmus.v1 import trainer_pb2 as pb
from tests.integration.peers.test_large_placements import LONGEST_CHECK_SECONDS, MOST_MEASUREMENTS, checks_until
from tests.integration.peers.test_relays import RUN, connected, deaf
from tests.support.group_flags import ACCEPTING, SHARD, member, trained
from tests.support.peers.strangers import path_of
from tests.support.running import heard_trainer_process, running_trainer
from tests.support.wire import joining

pytestmark = pytest.mark.slow

CALLERS = 48
CROWD_SECONDS = 4.0
GROUP = [f'groups=[{{name="line", size=2, most={CALLERS}}}]', ACCEPTING, "checkpoints.location=none"]


async def shortest_of(measure):
    """Return the longest check of the best measurement: other work on the machine makes a check longer, never shorter."""
    measured = [await measure()]
    while min(measured) > LONGEST_CHECK_SECONDS and len(measured) < MOST_MEASUREMENTS:
        measured.append(await measure())
    print("\nlongest checks:", ", ".join(f"{seconds:.3f} s" for seconds in measured))
    return min(measured)


async def test_the_most_relays_of_a_subject_hold_up_no_health_check():
    async def fill(address, far):
        async with connected(address) as connection, AsyncExitStack() as stack:
            for _ in range(PeersConfig().max_relays_per_subject):
                relay = await stack.enter_async_context(relay_call(connection, far, RUN))
                for _ in range(WAITING_BYTES // CARRIED_BYTES):
                    await relay.send(bytes(CARRIED_BYTES))
            await asyncio.sleep(1.0)  # they are watched for a while

    async def measure():
        with (
            deaf() as far,
            heard_trainer_process(f'peers.allowed=["{far}"]', "compute.threads=1", begun_by_python=True) as started,
        ):
            filling = asyncio.ensure_future(fill(started[1], far))
            longest = await asyncio.to_thread(checks_until, started[1], filling)
            await filling
            return longest

    assert await shortest_of(measure) <= LONGEST_CHECK_SECONDS


async def test_many_callers_that_open_and_close_sessions_of_a_group_hold_up_no_health_check():
    request = await request_of_a_member()

    def come_and_go(address, rank, ended):
        """Open, join and close sessions of one rank until the crowd ends."""
        own = pb.OpenSessionRequest()
        own.CopyFrom(request)
        own.group.rank = rank
        with grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
            calls = {
                name: channel.unary_unary(path_of(name)) for name in ("OpenSession", "JoinSession", "CloseSession")
            }
            while not ended.is_set():
                with suppress(grpc.RpcError):  # a rank beyond the second is refused until the group has begun
                    opened = calls["OpenSession"](own.SerializeToString(), timeout=60)
                    session = pb.OpenSessionResponse.FromString(opened).session_id
                    calls["JoinSession"](joining(session), timeout=60)
                    close = pb.CloseSessionRequest(session_id=session, fence=pb.Fence(session_term=1))
                    calls["CloseSession"](close.SerializeToString(), timeout=60)

    async def measure():
        flags = [*GROUP, f"server.max_sessions={CALLERS}", "compute.threads=1"]
        with heard_trainer_process(*flags, begun_by_python=True) as (_, address, _said):
            ended = threading.Event()
            callers = [threading.Thread(target=come_and_go, args=(address, rank, ended)) for rank in range(CALLERS)]
            for caller in callers:
                caller.start()
            crowd = asyncio.ensure_future(asyncio.sleep(CROWD_SECONDS))
            longest = await asyncio.to_thread(checks_until, address, crowd)
            ended.set()
            await asyncio.to_thread(lambda: [caller.join() for caller in callers])
            return longest

    assert await shortest_of(measure) <= LONGEST_CHECK_SECONDS


async def request_of_a_member():
    """Return what opens the session of a member, as an agent has sent it."""
    async with running_trainer(*GROUP) as server:
        configs = [member(rank, server, size=2, more=[SHARD]) for rank in range(2)]
        training = asyncio.create_task(run_training(configs[0]))
        (group,) = server.service.groups.all
        while not group.seats.sessions:
            await asyncio.wait({training}, timeout=0.01)
            assert not training.done(), training.result()
        request = pb.OpenSessionRequest()
        request.CopyFrom(group.seats.sessions[0].request)
        await trained(configs[1:])
        await training
    return request
