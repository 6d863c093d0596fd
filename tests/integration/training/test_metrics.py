"""Metrics that a run leaves on both sides, against the run's own account."""

import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from edge_agent.training.deployer import Deployer
from isthmus import run_training
from tests.support.commands import MLP
from tests.support.running import Listening, cut_at, edge_config, held_port, running_trainer

STEPS, BATCH = 12, 32
RUN = [*MLP, f"training.max_steps={STEPS}", f"data.batch_size={BATCH}", "deployment.staleness=2"]


def value(metrics, name, **labels):
    return metrics.registry.get_sample_value(name, labels)


async def test_both_sides_count_what_the_run_did(edge_metrics):
    async with running_trainer() as server:
        config = edge_config(*RUN, 'deployment.codec="uniform8"', f"trainer.address={server.address}")
        result = await run_training(config)
        cloud = server.metrics
    (edge,) = edge_metrics
    for side in (edge, cloud):
        assert value(side, "isthmus_steps_total") == STEPS
        assert value(side, "isthmus_samples_total") == STEPS * BATCH
        assert value(side, "isthmus_payload_bytes_total", direction="up") == result.summary.bytes_up
        assert value(side, "isthmus_payload_bytes_total", direction="down") == result.summary.bytes_down
        assert value(side, "isthmus_saved_bytes_total", direction="down") == 0, "fp32 saves nothing"
        assert value(side, "isthmus_phase_seconds_count", phase="cloud") == STEPS
    saved = value(edge, "isthmus_saved_bytes_total", direction="up")
    assert saved == value(cloud, "isthmus_saved_bytes_total", direction="up") > result.summary.bytes_down / 2
    assert value(edge, "isthmus_phase_seconds_count", phase="edge") == STEPS
    assert value(edge, "isthmus_phase_seconds_count", phase="uplink") == STEPS
    assert 0 < value(cloud, "isthmus_phase_seconds_count", phase="downlink") <= STEPS, "the last acks need not come"
    assert value(edge, "isthmus_staleness_steps_count") == STEPS
    assert value(edge, "isthmus_staleness_steps_bucket", le="2.0") == STEPS, "none was staler than K"
    assert value(edge, "isthmus_step_seconds_count") == STEPS - 1, "all but the first follow a step"
    assert value(edge, "isthmus_loss") == result.summary.train_loss
    assert value(edge, "isthmus_planned_steps") == STEPS


async def test_gauges_say_what_is_in_force_and_under_way(edge_metrics):
    seen, in_flight = [], []

    def look(progress):
        edge = edge_metrics[-1]
        in_flight.append(value(edge, "isthmus_batches_in_flight"))
        if progress.steps == STEPS // 2:
            names = ["attached", "edge_blocks", "model_blocks", "staleness_limit_steps"]
            seen.append([value(edge, f"isthmus_{name}") for name in names])
            seen.append([value(edge, "isthmus_codec_bit_width", direction=way) for way in ("up", "down")])

    async with running_trainer() as server:
        config = edge_config(*RUN, 'deployment.codec="uniform4"', f"trainer.address={server.address}")
        await run_training(config, Listening(look))
    attached, cut, blocks, limit = seen[0]
    assert (attached, cut, limit) == (1, 1, 2)
    assert blocks > cut
    assert 0 < max(in_flight) <= limit + 1
    assert seen[1] == [4, 32]
    edge = edge_metrics[-1]
    assert value(edge, "isthmus_attached") == 0, "the run has ended"
    assert value(edge, "isthmus_batches_in_flight") == 0


async def test_the_device_alone_misses_no_trainer(edge_metrics):
    """Or an alert would say that it has lost one."""
    seen = []
    flags = [flag for flag in RUN if not flag.startswith("deployment.cut")]
    config = edge_config(*flags, "trainers=[]")
    await run_training(config, Listening(lambda _: seen.append(value(edge_metrics[-1], "isthmus_attached"))))
    assert seen[-STEPS:] == [1] * STEPS
    assert value(edge_metrics[-1], "isthmus_attached") == 0, "the run has ended"


async def test_moves_of_the_cut_are_counted_and_shown(edge_metrics):
    deployers: list[Deployer] = []

    def move(progress):
        if progress.steps == 2:  # a request may come some steps late
            cut_at(deployers[0], 2)

    async with running_trainer() as server:
        config = edge_config(*RUN, f"trainer.address={server.address}")
        await run_training(config, Listening(move, deployers.append))
    (edge,) = edge_metrics
    assert value(edge, "isthmus_migrations_total", outcome="done") == 1
    assert value(edge, "isthmus_migrations_total", outcome="failed") == 0
    assert value(edge, "isthmus_migration_seconds_count") == 1
    assert value(edge, "isthmus_edge_blocks") == 2
    assert value(edge, "isthmus_step_seconds_count") == STEPS - 2, "the first step after the move follows none"


async def test_the_edge_serves_its_metrics_while_it_trains_and_no_longer():
    served = []

    def look(progress):
        if progress.steps == STEPS:
            with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as response:
                served.extend(text_string_to_metric_families(response.read().decode()))

    with held_port() as port:
        address = f"127.0.0.1:{port}"
        async with running_trainer() as server:
            config = edge_config(*RUN, f"metrics.listen={address}", f"trainer.address={server.address}")
            for _ in range(2):  # twice: the first run must have given the port back
                await run_training(config, Listening(look))
    steps = [family.samples[0].value for family in served if family.name == "isthmus_steps"]
    assert steps == [STEPS, STEPS]


async def test_a_failed_call_is_counted_on_both_sides_by_its_code(edge_metrics):
    async with running_trainer("server.max_staleness=1") as server:
        config = edge_config(*RUN, f"trainer.address={server.address}")
        with pytest.raises(Exception, match="limit of 1"):
            await run_training(config)
        cloud = server.metrics
    (edge,) = edge_metrics
    for side in (edge, cloud):
        assert value(side, "isthmus_errors_total", code="INVALID_ARGUMENT") == 1
    assert value(edge, "isthmus_attached") == 0
