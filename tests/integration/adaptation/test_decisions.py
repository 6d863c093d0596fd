"""The decision engine in a real run on a link of a given rate: it goes where that wants it, and an operator's word holds."""

import asyncio
import math
import time
from dataclasses import replace

import pytest

from benchmarks.net import Relay
from edge_agent.adaptation import link_probe
from edge_agent.main import app
from edge_agent.planning import Rates, SearchSpace, first_layout, profile_to_json
from isthmus import run_training
from shared.client import link_measurement as link_measuring
from shared.errors import ConfigError, PlanError
from shared.training.stage import Stage
from tests.support.commands import command
from tests.support.experiments import flags, profile_of
from tests.support.operators import EDGE, Operator
from tests.support.planning.cases import asked
from tests.support.running import Listening, edge_config, running_trainer

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]
STEPS = 100_000
"""Far more than a test waits for, so that there is something to gain."""


@pytest.fixture
def profile(tmp_path):
    """A profile of the small network, and its file."""
    written = profile_of(edge_config(*flags("cnn", "sgd")))
    path = tmp_path / "profile.json"
    path.write_text(profile_to_json(written))
    return written, path


async def train_until(config, reached):
    """Train until `reached` says so of the progress, and stop there."""
    done = asyncio.Event()
    deployers = []

    def on_progress(progress):
        if deployers and reached(deployers[0].deployment, progress):
            done.set()

    async with asyncio.timeout(120):
        run = asyncio.create_task(run_training(config, Listening(on_progress, deployers.append)))
        waiting = asyncio.create_task(done.wait())
        await asyncio.wait({run, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if not run.done():
            run.cancel()
        await asyncio.gather(run, return_exceptions=True)
        assert done.is_set(), run.exception()


def settings(port, path, *more):
    return edge_config(
        *flags("cnn", "sgd"),
        f"trainer.address=127.0.0.1:{port}",
        f'engine.profile="{path}"',
        f"training.epochs={STEPS}",
        f"training.max_steps={STEPS}",
        "training.evaluate_every_epochs=0",
        "engine.dwell_seconds=1",
        *more,
    )


async def test_over_a_slow_link_the_engine_leaves_the_cut_whose_feature_is_large(profile):
    written, path = profile
    sizes = written.feature_bytes
    largest = max(range(1, len(written)), key=lambda cut: sizes[cut])
    assert min(sizes[1:-1]) < sizes[largest] / 1.5, "or there would be nothing to decide"
    async with running_trainer() as server:
        host, _, port = server.address.rpartition(":")
        async with Relay(host, int(port), uplink_bits_per_second=5e6, downlink_bits_per_second=5e6) as relay:
            config = settings(relay.port, path, f"deployment.cut={largest}", "engine.bits=[32]")
            await train_until(
                config,
                lambda deployment, progress: (
                    deployment.edge_blocks != largest and progress.edge_blocks == deployment.edge_blocks
                ),
            )


async def test_the_status_says_why_the_engine_moved_the_cut(profile):
    written, path = profile
    sizes, socket, steering = written.feature_bytes, f"unix:{path.parent}/a.sock", []
    largest = max(range(1, len(written)), key=lambda cut: sizes[cut])
    operator = Operator(socket, EDGE)

    def steer():
        operator("SetPlanner", {"planner": "fixed"})
        quick, slow = 2e7, 1e7
        before = operator.watch_until(
            lambda status: status.get("uplinkBitsPerSecond", 0) > quick and int(status["step"]) > 300
        )
        relay.uplink.bits_per_second = relay.downlink.bits_per_second = 5e6
        operator.watch_until(lambda status: status.get("uplinkBitsPerSecond", quick) < slow)
        operator("SetPlanner", {"planner": "greedy"})
        return before, operator.watch_until(lambda status: "engineChange" in status), command(app, "status", listens)

    def reached(_deployment, progress):
        if progress.steps and not steering:
            steering.append(asyncio.ensure_future(asyncio.to_thread(steer)))
        return bool(steering) and steering[0].done()

    listens = f"--control={socket}"
    async with running_trainer() as server:
        host, _, port = server.address.rpartition(":")
        async with Relay(host, int(port), uplink_bits_per_second=3e8, downlink_bits_per_second=3e8) as relay:
            more = (
                f"deployment.cut={largest}",
                "engine.bits=[32]",
                "engine.max_staleness=0",
                "engine.allow_edge_only=false",
                f"control.listen={socket}",
            )
            await train_until(settings(relay.port, path, *more), reached)
    before, after, shown = steering[0].result()
    assert (before["deployment"]["edgeBlocks"], "engineChange" in before) == (largest, False)
    change, cut = after["engineChange"], after["deployment"]["edgeBlocks"]
    assert change["before"].startswith(f"cut {largest}, ")
    assert change["chosen"].startswith(f"cut {cut}, ")
    assert change["secondsPerStep"] < change["stayingSecondsPerStep"]
    assert int(change["step"]) <= int(after["step"])
    assert change["reason"] in ("link", "device")
    assert change["cause"].startswith("the link from edge to trainer has ")
    assert f"from {change['before']} to" in " ".join(shown.replace("│", " ").split())


async def first_deployment_over(bits_per_second, path, *more):
    """Return the deployment that a run begins with over such a link."""
    begun = []
    async with running_trainer() as server:
        host, _, port = server.address.rpartition(":")
        ways = {"uplink_bits_per_second": bits_per_second, "downlink_bits_per_second": bits_per_second}
        async with Relay(host, int(port), **ways) as relay:

            def reached(deployment, _progress):
                begun.append((deployment.version, deployment.edge_blocks, deployment.staleness, deployment.codec))
                return True

            await train_until(settings(relay.port, path, *more), reached)
    assert begun[0][0] == 0, "of the first deployment, and not of one that the engine has changed to"
    return begun[0][1:]


async def test_a_run_whose_cut_is_left_open_begins_with_the_plan_for_the_link_that_it_finds(profile):
    written, path = profile
    edge = written.workers[0]
    # Of a device so slow, the quicker plan is right from 10 Mbit/s on, and a busy machine carries more than that.
    written = written.with_worker(replace(edge, replayed=10 * edge.replayed))
    path.write_text(profile_to_json(written))
    found = {await first_deployment_over(rate, path, "engine.bits=[8]") for rate in (1e6, 3e8)}
    plans = {
        (*plan.cuts, plan.staleness, "uniform8")
        for rate in (1e6, 3e8)
        for plan in [first_layout(*asked(written, Rates(rate, rate), SearchSpace((8,))))]
    }
    assert found == plans
    assert len(plans) == 2, "or any link would do"


async def test_a_run_begins_with_the_cut_that_is_named(profile):
    _, path = profile
    for cut in (1, 3):
        assert await first_deployment_over(3e8, path, f"deployment.cut={cut}") == (cut, 0, "fp32")


async def test_where_the_link_cannot_be_probed_a_run_begins_with_half_of_the_blocks(profile, monkeypatch):
    written, path = profile

    async def unknown(_calls, _count):
        raise link_measuring.NotMeasuredError("no token for it")

    monkeypatch.setattr(link_measuring, "measure_round_trip", unknown)
    assert await first_deployment_over(3e8, path) == (len(written) // 2, 0, "fp32")


async def test_a_probe_finds_what_the_link_carries_each_way():
    async with running_trainer() as server:
        host, _, port = server.address.rpartition(":")
        # So slow that what a busy machine takes for the bytes is little beside what the link does.
        ways = {"uplink_bits_per_second": 1e6, "downlink_bits_per_second": 4e6, "one_way_delay_seconds": 0.05}
        async with Relay(host, int(port), **ways) as relay:
            config = edge_config(f"trainer.address={relay.address}")
            found = await link_probe.probe_link(config, config.only_trainer)
    assert found.uplink == pytest.approx(1e6, rel=0.3)
    assert found.downlink == pytest.approx(4e6, rel=0.3)
    assert 0.1 <= found.round_trip_seconds < 0.5


async def test_over_a_long_way_the_engine_takes_batches_in_flight_and_shows_the_round_trip(profile):
    _, path = profile
    async with running_trainer() as server:
        host, _, port = server.address.rpartition(":")
        async with Relay(host, int(port), one_way_delay_seconds=0.05) as relay:
            shown = [math.inf]

            def reached(deployment, progress):
                if progress.round_trip_seconds is not None:
                    shown.append(progress.round_trip_seconds)
                return deployment.staleness == 2

            more = ("deployment.cut=3", "deployment.staleness=0", "engine.bits=[32]", "engine.allow_edge_only=false")
            await train_until(settings(relay.port, path, *more), reached)
    assert 0.1 <= min(shown) < 0.3, "what a busy machine adds to some of them is no part of the way"


async def test_all_blocks_come_to_the_edge_over_a_bad_link_and_go_back_when_it_is_good_again(profile, monkeypatch):
    written, path = profile
    last, last_seconds, forward = len(written), 0.05, Stage.forward

    def slower_with_all_blocks(self, *arguments, **more):
        time.sleep(last_seconds * ((self.first, self.stop) == (0, last)))
        return forward(self, *arguments, **more)

    monkeypatch.setattr(Stage, "forward", slower_with_all_blocks)
    monkeypatch.setattr(link_probe, "PERIOD_SECONDS", 2.0)
    edge = written.workers[0]
    replayed = edge.replayed.copy()
    replayed[0, last] = last_seconds
    path.write_text(profile_to_json(written.with_worker(replace(edge, replayed=replayed))))
    async with running_trainer() as server:
        host, _, port = server.address.rpartition(":")
        async with Relay(host, int(port), uplink_bits_per_second=2e5, downlink_bits_per_second=2e5) as relay:
            bad = True

            def reached(deployment, progress):
                nonlocal bad
                if bad and deployment.edge_blocks == progress.edge_blocks == last:
                    relay.uplink.bits_per_second = relay.downlink.bits_per_second = 3e8
                    bad = False
                return not bad and deployment.edge_blocks == progress.edge_blocks < last

            more = ("deployment.cut=3", "engine.bits=[32]", "engine.max_staleness=0", "engine.allow_edge_only=true")
            await train_until(settings(relay.port, path, *more), reached)


async def test_a_pin_moves_the_cut_at_once(profile):
    _, path = profile
    socket, pinning = f"unix:{path.parent}/a.sock", []

    def reached(deployment, progress):
        if progress.steps and not pinning:
            pin = ("pin", "--cut=2", "--bits=8", "--staleness=1", f"--control={socket}")
            pinning.append(asyncio.ensure_future(asyncio.to_thread(command, app, *pin)))
        now = deployment.edge_blocks, deployment.codec, deployment.staleness, progress.edge_blocks
        return now == (2, "uniform8", 1, 2)

    async with running_trainer() as server:
        port = server.address.rpartition(":")[2]
        await train_until(settings(port, path, "deployment.cut=1", f"control.listen={socket}"), reached)
        await pinning[0]


async def test_what_the_engine_cannot_work_with_is_refused_before_anything_is_asked_of_a_trainer(profile):
    _, path = profile
    with pytest.raises(ConfigError, match=r"deployment\.staleness is a schedule"):
        await run_training(settings(1, path, "deployment.staleness=[[0, 1], [1, 2]]"))
    with pytest.raises(PlanError, match=r"data\.batch_size is 7"):
        await run_training(settings(1, path, "data.batch_size=7"))
    path.write_text("{}")
    with pytest.raises(PlanError, match=r"profile\.json: schema is null"):
        await run_training(settings(1, path))
