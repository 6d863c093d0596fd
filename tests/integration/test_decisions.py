"""The decision engine in a real run on a link of a given rate: it goes where that wants it, and an operator's word holds."""

import asyncio

import pytest

from benchmarks.net import Relay
from edge_agent import run_training
from edge_agent.experiment import Experiment
from shared.errors import ConfigError, PlanError
from shared.planning import Block, Encode, Profile, profile_to_json
from tests.integration.test_exactness import flags
from tests.support.running import edge_config, running_trainer

pytestmark = pytest.mark.usefixtures("one_thread")
STEPS = 100_000
"""Far more than a test waits for, so that there is something to gain."""


@pytest.fixture
def profile(tmp_path):
    """A profile of the tests' small network: sizes as they are, times as such a device would have them."""
    experiment = Experiment(edge_config(*flags("cnn", "sgd")))
    chain = experiment.chain
    sizes = tuple(float(feature.bytes) for feature in chain.features[:-1])
    count = len(chain.blocks)
    written = Profile(
        model="cnn",
        batch_size=experiment.config.data.batch_size,
        blocks=tuple(Block(block.name, 1e4) for block in chain.blocks),
        feature_bytes=(*sizes, None),
        gradient_bytes=(*sizes, None),
        edge_seconds=(None, *(0.002 * cut for cut in range(1, count)), None),
        cloud_seconds=(None, *(0.001 for _ in range(1, count)), None),
        encode=Encode(1e-9, 1e-4),
        min_bits=None,
        max_staleness=2,
    )
    path = tmp_path / "profile.json"
    path.write_text(profile_to_json(written))
    return written, path


async def train_until(config, reached, on_engine=lambda _: None):
    """Train until `reached` says so of the progress, and stop there."""
    done = asyncio.Event()
    deployers = []

    def on_progress(progress):
        if reached(deployers[0].deployment, progress):
            done.set()

    async with asyncio.timeout(120):
        run = asyncio.create_task(run_training(config, on_progress, deployers.append, on_engine))
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
                config, lambda deployment, progress: deployment.cut != largest and progress.cut == deployment.cut
            )


async def test_a_pin_moves_the_cut_at_once(profile):
    _, path = profile
    async with running_trainer() as server:
        config = settings(server.address.rpartition(":")[2], path, "deployment.cut=1")

        def pin(decisions):
            decisions.pin(cut=2, bits=8, staleness=1)

        await train_until(
            config,
            lambda deployment, progress: (
                (deployment.cut, deployment.codec, deployment.staleness, progress.cut) == (2, "uniform8", 1, 2)
            ),
            pin,
        )


async def test_what_the_engine_cannot_work_with_is_refused_before_anything_is_asked_of_a_trainer(profile):
    _, path = profile
    with pytest.raises(ConfigError, match=r"deployment\.staleness is a schedule"):
        await run_training(settings(1, path, "deployment.staleness=[[0, 1], [1, 2]]"))
    with pytest.raises(PlanError, match=r"data\.batch_size is 7"):
        await run_training(settings(1, path, "data.batch_size=7"))
    path.write_text("{}")
    with pytest.raises(PlanError, match=r"profile\.json: schema is null"):
        await run_training(settings(1, path))
