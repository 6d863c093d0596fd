"""What workers count under a placement: bytes as `edge-agent placement` foretells them, steps, staleness, evaluations."""

from collections import defaultdict

import pytest
import torch

from cloud_trainer.sessions.worker.figures import WorkerFigures
from edge_agent import run_training
from edge_agent.experiment.building import Experiment
from edge_agent.experiment.placement_report import report_on
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


async def test_every_worker_counts_the_bytes_that_the_command_foretells(edge_metrics, tmp_path):
    for kind in KINDS:
        async with running_trainers() as servers:
            config = config_of(kind, servers, tmp_path)
            await run_training(config)
        report = report_on(Experiment(config))
        sides = {"edge": (edge_metrics[-1], "up", "down")}
        sides |= {name: (server.metrics, "down", "up") for name, server in servers.items()}
        for worker in report.placement.workers:
            metrics, sending, receiving = sides[worker]
            sent = sum(one.bytes for one in report.transfers if one.crossing.sender == worker)
            received = sum(one.bytes for one in report.transfers if one.crossing.receiver == worker)
            assert value(metrics, "isthmus_payload_bytes_total", direction=sending) == STEPS * sent, (kind, worker)
            assert value(metrics, "isthmus_payload_bytes_total", direction=receiving) == STEPS * received, (
                kind,
                worker,
            )
            assert value(metrics, "isthmus_steps_total") == STEPS, (kind, worker)
            assert value(metrics, "isthmus_samples_total") == STEPS * BATCH_SIZE, (kind, worker)
        for name in servers.keys() - set(report.placement.workers):
            assert value(servers[name].metrics, "isthmus_steps_total") == 0


async def test_nothing_is_staler_than_k_at_any_worker(edge_metrics, monkeypatch, tmp_path):
    ended, lateness = defaultdict(lambda: -1), []

    def note_ended(trainer, step, _staleness):
        ended[trainer] = step

    def note_computed(trainer, step, what, _start_seconds, _end_seconds):
        if "forward" in what:
            lateness.append(step - 1 - ended[trainer])

    monkeypatch.setattr(WorkerFigures, "step_ended", note_ended, raising=False)
    monkeypatch.setattr(WorkerFigures, "computed", note_computed, raising=False)
    for kind in KINDS:
        async with running_trainers() as servers:
            await run_training(config_of(kind, servers, tmp_path, "mlp", f"deployment.staleness={K}"))
        edge = edge_metrics[-1]
        count = value(edge, "isthmus_staleness_steps_count")
        assert count == STEPS
        assert value(edge, "isthmus_staleness_steps_bucket", le=f"{K}.0") == count, kind
        assert value(edge, "isthmus_batches_in_flight") == 0
    assert 0 < max(lateness) <= K, "no trainer runs forward on weights that lack more than K steps"
    on_time = [value(edge, "isthmus_staleness_steps_bucket", le="0.0") for edge in edge_metrics]
    assert min(on_time) < STEPS, "gradients were late somewhere, or this test shows nothing"


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
