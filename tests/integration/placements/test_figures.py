"""Counts of workers under a placement: bytes as `edge-agent placement` foretells them, steps, staleness,
evaluations."""

from collections import defaultdict
from copy import copy
from dataclasses import replace

import pytest
import torch

from cloud_trainer.sessions.worker.figures import SessionFigures
from edge_agent.experiment.experiment import Experiment
from edge_agent.experiment.placement_report import report_on
from isthmus import run_training
from shared.events.worker import Computed, StepComputed
from shared.placement import AGENT, Cargo, Route, Tile
from tests.integration.placements.test_links_of_trainers import ALLOWED, BATCHES, BEHIND, BLOCKS, WHOLE, chain, standing
from tests.support.experiments import flags
from tests.support.placement_kinds import (
    BATCH_SIZE,
    RANGES,
    SHARED,
    addresses_of,
    flags_of,
    permitted,
    running_trainers,
)
from tests.support.running import edge_config

STEPS, K = 6, 2
KINDS = [*RANGES, *SHARED]
pytestmark = pytest.mark.usefixtures("one_thread")


def config_of(kind, servers, folder, model="mlp", *more):
    placed = [*flags_of(kind, addresses_of(servers), folder), *permitted(kind, model)]
    length = [f"data.batch_size={BATCH_SIZE}", f"training.max_steps={STEPS}"]
    return edge_config(*flags(model, "sgd"), *length, *placed, *more)


def value(metrics, name, **labels):
    return metrics.registry.get_sample_value(name, labels)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", pytest.param("fp16", marks=pytest.mark.full)])
async def test_every_worker_counts_the_bytes_that_the_command_foretells(precision, edge_metrics, tmp_path):
    overlapped = False
    for kind in KINDS:
        async with running_trainers() as servers:
            codecs = ['deployment.codec="uniform8"', 'deployment.downlink_codec="fp16"']  # or both ways are as long
            config = config_of(kind, servers, tmp_path, "mlp", *codecs, f'training.precision="{precision}"')
            await run_training(config)
        report = report_on(Experiment(config))
        sides = {"edge": edge_metrics[-1]} | {name: server.metrics for name, server in servers.items()}
        for worker in report.placement.workers:
            expected = dict.fromkeys(("up", "down"), 0)
            for one in report.transfers:
                ends = one.crossing.sender, one.crossing.receiver
                if worker in ends:
                    sender, receiver = map(report.placement.workers.index, ends)
                    expected["up" if sender < receiver else "down"] += STEPS * one.bytes
            metrics = sides[worker]
            counted = {way: value(metrics, "isthmus_payload_bytes_total", direction=way) for way in expected}
            assert counted == expected, (kind, worker)
            assert value(metrics, "isthmus_steps_total") == STEPS, (kind, worker)
            assert value(metrics, "isthmus_samples_total") == STEPS * BATCH_SIZE, (kind, worker)
        check_what_is_shared(edge_metrics[-1], report)
        overlapped |= value(edge_metrics[-1], "isthmus_overlap_ratio") is not None
        for name in servers.keys() - set(report.placement.workers):
            assert value(servers[name].metrics, "isthmus_steps_total") == 0
    assert overlapped, "of some; a run whose steps are all told of at once has no ratio"


EXCHANGED = (Cargo.WEIGHT_GRADIENT, Cargo.WEIGHTS)


def check_what_is_shared(metrics, report):
    """Compare what the edge counts of divided batches with the placement and what it foretells."""
    placement = report.placement
    for worker in placement.workers:
        tiles = [tile for tile in placement.tiles if tile.worker == worker]
        run = {block for tile in tiles for block in range(tile.first, tile.stop)}
        assert value(metrics, "isthmus_worker_blocks", worker=worker) == len(run)
        assert value(metrics, "isthmus_worker_samples", worker=worker) == max((t.rows.count for t in tiles), default=0)
    crossing = [one for one in report.transfers if AGENT in (one.crossing.sender, one.crossing.receiver)]
    shared = [one for one in crossing if one.crossing.cargo in EXCHANGED]
    received = sum(one.bytes for one in shared if one.crossing.receiver == AGENT)
    sent = sum(one.bytes for one in shared if one.crossing.sender == AGENT)
    counted = {way: value(metrics, "isthmus_exchange_bytes_total", direction=way) for way in ("up", "down")}
    assert counted["down"] == STEPS * received
    assert bool(sent) == bool(counted["up"]), "the last acks need not come"
    assert counted["up"] <= STEPS * sent
    assert bool(sent) == bool(value(metrics, "isthmus_exchange_seconds_count"))
    overlap = value(metrics, "isthmus_overlap_ratio")
    assert overlap is None or ((sent or received) and 0.0 <= overlap <= 1.0)
    shows = any(
        one.crossing.cargo is Cargo.FEATURE and one.crossing.index == 0 and one.crossing.sender == AGENT
        for one in crossing
    )
    assert bool(value(metrics, "isthmus_inputs_sent_total")) == shows


@pytest.mark.first_case
@pytest.mark.parametrize(
    ("kind", "up", "down"),
    [
        ("labels stay", {}, {"near": 2}),
        ("chain of three", {"near": 1}, {"near": 1, "far": 1}),
        ("there and back", {"near": 1}, {"near": 1, "far": 2}),
        ("chain of four", {"near": 1, "far": 1}, {"near": 1, "far": 1, "cloud": 1}),
    ],
)
async def test_a_trainer_times_what_it_sends_in_training_on_every_link(kind, up, down, tmp_path):
    """up, down: how many transfers each trainer times in a step."""
    async with running_trainers() as servers:
        result = await run_training(config_of(kind, servers, tmp_path, "cnn"))
        assert result.summary.accuracy is not None, "features of an evaluation have crossed, too"
        for phase, each in (("uplink", up), ("downlink", down)):
            for name, server in servers.items():
                count, most = value(server.metrics, "isthmus_phase_seconds_count", phase=phase), each.get(name, 0)
                assert bool(count) == bool(most), (name, phase)
                assert count <= most * STEPS, (name, phase, "the last acks need not come")


async def test_a_trainer_that_is_last_under_another_placement_counts_all_that_it_receives_as_up():
    async with standing(chain(), ALLOWED, near=()) as (agent, servers):
        await agent.dial()
        await agent.train(0, BATCHES[:3])
        figures = servers["near"].service.sessions.built[0].figures
        before = copy(figures)
        tiles = (Tile(AGENT, 0, 1, WHOLE), Tile("far", 1, 2, WHOLE), Tile("near", 2, BLOCKS, WHOLE))
        codecs = {Route("far", "near", Cargo.FEATURE): "uniform8"}  # or both ways are as long
        after = replace(chain(version=1), workers=(AGENT, "far", "near"), tiles=tiles, codecs=codecs)
        await agent.commit(after, 3)
        await agent.train(3, BATCHES[3:])
        received, sent = figures.received_bytes - before.received_bytes, figures.sent_bytes - before.sent_bytes
        assert (figures.bytes_up - before.bytes_up, figures.bytes_down - before.bytes_down) == (received, sent)
        assert min(received, sent) > 0


async def test_the_series_of_links_are_those_of_the_placement_in_force():
    async with standing(BEHIND, ALLOWED, near=()) as (agent, servers):
        await agent.dial()
        await agent.train(0, BATCHES[:3])
        assert set(shown_links(servers["near"])) <= {"near>edge", "near>far"}, "a rate that is not known has none"
        assert set(shown_links(servers["far"])) <= {"far>near"}
        await agent.commit(chain(version=1), 3)
        assert set(shown_links(servers["near"])) <= {"near>edge", "near>far"}
        assert set(shown_links(servers["far"])) <= {"far>near", "far>edge"}


def shown_links(server):
    """The rates by the label, in bytes per second."""
    name = "isthmus_session_link_bytes_per_second"
    every = [sample for family in server.metrics.registry.collect() for sample in family.samples if sample.name == name]
    return {sample.labels["link"]: sample.value for sample in every}


@pytest.mark.slow
async def test_nothing_is_staler_than_k_at_any_worker(edge_metrics, monkeypatch, tmp_path):
    ended, lateness = defaultdict(lambda: -1), {True: [], False: []}

    make = SessionFigures.__init__

    def make_noting(trainer, *arguments):
        def note_ended(event):
            ended[trainer] = event.step

        def note_computed(event):
            if "forward" in event.what:
                lateness[kind in SHARED].append(event.step - 1 - ended[trainer])

        *_, events = arguments
        events.subscribe(StepComputed, note_ended)
        events.subscribe(Computed, note_computed)
        make(trainer, *arguments)

    monkeypatch.setattr(SessionFigures, "__init__", make_noting)
    for kind in KINDS:
        async with running_trainers() as servers:
            await run_training(config_of(kind, servers, tmp_path, "mlp", f"deployment.staleness={K}"))
        edge = edge_metrics[-1]
        count = value(edge, "isthmus_staleness_steps_count")
        assert count == STEPS
        assert value(edge, "isthmus_staleness_steps_bucket", le=f"{K}.0") == count, kind
        assert value(edge, "isthmus_batches_in_flight") == 0
    assert 0 < max(lateness[False]) <= K, "no trainer runs forward on weights that lack more than K steps"
    assert max(lateness[True]) <= K + 1, "of a step, weights of later blocks may still come"
    on_time = [value(edge, "isthmus_staleness_steps_bucket", le="0.0") for edge in edge_metrics]
    assert min(on_time) < STEPS, "gradients were late somewhere, or this test shows nothing"


@pytest.mark.slow
async def test_an_evaluation_finds_what_one_process_finds_with_the_weights_that_come_home(tmp_path):
    async with running_trainers() as servers:
        for kind in ("labels stay", "chain of four", "samples divided", "owners that run nothing"):
            config = config_of(kind, servers, tmp_path, "cnn", f"deployment.staleness={K}")
            result = await run_training(config)
            module, loss, correct, samples = result.module.eval(), 0.0, 0, 0
            with torch.no_grad():
                for batch in Experiment(config).evaluation.iterate():
                    outputs = module(batch.inputs)
                    loss += float(torch.nn.functional.cross_entropy(outputs, batch.labels, reduction="sum"))
                    correct += int((outputs.argmax(1) == batch.labels).sum())
                    samples += len(batch.labels)
            assert result.summary.accuracy == correct / samples, kind
            assert result.summary.test_loss == pytest.approx(loss / samples, rel=1e-5), kind
