"""The metrics of both sides: counters exist from the start, figures once they are known, and each says what it means."""

import math
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import grpc
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from cloud_trainer.groups.merging import GroupFigures
from cloud_trainer.metrics import QUEUES, TrainerMetrics
from edge_agent.observability.metrics import EdgeMetrics
from edge_agent.training.statistics import Statistics, WorkerFigures
from shared.placement import Deployment
from shared.telemetry.metrics import TrainingMetrics
from tests.conftest import ROOT


class OpenSession:
    """The part of a session that its series are read from."""

    id, run_id = "5e55", "c0de"
    attachment = SimpleNamespace(attached=True)
    figures = SimpleNamespace(received_bytes=1000, sent_bytes=200, bytes_up=900, bytes_down=300, loss=0.5)
    links = SimpleNamespace(missing=("far",))
    worker = SimpleNamespace(
        name="gpu",
        link_rates={"edge": 8e6, "far": None},
        next_step=7,
        executor=SimpleNamespace(waiting=dict.fromkeys(QUEUES.values(), 0)),
        deployment=Deployment(version=1, edge_blocks=2, staleness=3, codec="uniform4", downlink_codec="fp32"),
    )


class HeldSessions:
    """The part of `Sessions` that a scrape reads."""

    limit = 3

    def __init__(self) -> None:
        self.built: list[OpenSession] = []
        self.reserved = 0

    def __len__(self) -> int:
        return len(self.built) + self.reserved


def edge(*, known: bool = False) -> CollectorRegistry:
    placed = {"edge": WorkerFigures(("0:2",)), "gpu": WorkerFigures(("2:4",))}
    statistics = Statistics(0, workers=placed, link_rates={("edge", "gpu"): None, ("gpu", "edge"): None})
    metrics = EdgeMetrics(CollectorRegistry(), statistics)
    metrics.show_workers(statistics)
    if known:
        statistics.deployment = OpenSession.worker.deployment
        statistics.uplink_bits_per_second = statistics.downlink_bits_per_second = 8e6
        statistics.link_rates = dict.fromkeys(statistics.link_rates, 8e6)
        metrics.show_run("c0de")
        statistics.metrics = {"top5": 0.9}
        metrics.show_metrics(statistics.metrics, statistics)
        metrics.engine.step_seconds.set(0.1, "measured")
        metrics.engine.prediction_ratio.set(1.0, "gpu")
        metrics.candidates.step_seconds.set(0.1, "gpu")
    return metrics.registry


def trainer(*, session: bool = False) -> CollectorRegistry:
    metrics, sessions = TrainerMetrics(CollectorRegistry()), HeldSessions()
    if session:
        sessions.built.append(OpenSession())
    metrics.watch(sessions)
    config = SimpleNamespace(name="line", ranks=range(2))
    seen = {"step": 7, "members": [0, 1], "seats": SimpleNamespace(attached=[1]), "late": {0: 12.0}}
    group = SimpleNamespace(config=config, figures=GroupFigures(), **seen)
    metrics.watch_groups([group] if session else [])
    return metrics.registry


def exported(registry: CollectorRegistry) -> dict[str, tuple[str, frozenset[str]]]:
    """Return the type and the label names by the name that a query uses."""
    return {
        family.name + "_total" * (family.type == "counter"): (
            family.type,
            frozenset(label for sample in family.samples for label in sample.labels if label != "le"),
        )
        for family in registry.collect()
    }


def all_exported() -> dict[str, tuple[str, frozenset[str]]]:
    """Return what both sides export."""
    return exported(edge(known=True)) | exported(trainer(session=True))


@pytest.mark.parametrize(("side", "registry"), [("edge", edge(known=True)), ("trainer", trainer(session=True))])
def test_each_side_exports_what_dashboards_and_alerts_of_users_ask_for(side, registry):
    """A name, a type or a label that changes breaks what others have built on it: change exported_metrics.txt knowingly."""
    lines = (Path(__file__).parent / "exported_metrics.txt").read_text(encoding="utf-8").splitlines()
    found = [" ".join([side, name, kind, *sorted(labels)]) for name, (kind, labels) in exported(registry).items()]
    assert sorted(found) == sorted(line for line in lines if line.startswith(f"{side} "))


@pytest.mark.parametrize("registry", [edge(known=True), trainer(session=True)])
def test_each_says_in_a_sentence_what_it_means(registry):
    for family in registry.collect():
        if family.name.startswith("isthmus_"):
            assert re.fullmatch(r"[A-Z1].{9,}\.", family.documentation), family.name


def test_pages_name_metrics_that_are_exported_with_their_labels():
    known = all_exported()
    for page in (ROOT / "docs").glob("*.md"):
        text = page.read_text(encoding="utf-8")
        assert set(re.findall(r"`((?:isthmus|process)_[a-z_]+)`", text)) <= known.keys(), page.name
        for name, label in re.findall(r"`(isthmus_[a-z_]+)` by (\w+)", text):
            assert label in known[name][1], name


def series(registry: CollectorRegistry) -> Iterator[tuple[str, dict[str, str], float]]:
    for family in registry.collect():
        for sample in family.samples:
            if not sample.name.startswith("process_") and not sample.name.endswith("_created"):
                yield sample.name, sample.labels, sample.value


@pytest.mark.parametrize("registry", [edge(), trainer()])
def test_every_series_exists_at_zero_before_anything_happened_but_for_figures_that_are_not_known(registry):
    found = list(series(registry))
    assert {value for name, _, value in found if name != "isthmus_sessions_limit"} == {0.0}
    for name in exported(registry):
        if not name.startswith(("process_", "isthmus_session_", "isthmus_group_")):
            assert any(known.startswith(name) for known, _, _ in found) == (name not in UNKNOWN), name


UNKNOWN = {
    "isthmus_run_info",
    "isthmus_replica_age_seconds",
    "isthmus_checkpoint_timestamp_seconds",
    "isthmus_link_bytes_per_second",
    "isthmus_worker_link_bytes_per_second",
    "isthmus_staleness_limit_steps",
    "isthmus_edge_blocks",
    "isthmus_codec_bit_width",
    "isthmus_prediction_ratio",
    "isthmus_engine_step_seconds",
    "isthmus_loss",
    "isthmus_loss_scale",
    "isthmus_skipped_samples",
    "isthmus_skipped_updates",
    "isthmus_accuracy_ratio",
    "isthmus_metric",
    "isthmus_overlap_ratio",
    "isthmus_candidate_step_seconds",
}
"""Gauges of the edge that have no series before their figure is known."""


def test_a_loss_that_this_trainer_does_not_know_is_no_zero(monkeypatch):
    monkeypatch.setattr(OpenSession.figures, "loss", None)
    assert trainer(session=True).get_sample_value("isthmus_session_loss", {"session": "5e55"}) is None


def test_a_loss_that_is_not_finite_is_exported_and_one_that_is_not_known_is_not():
    statistics = Statistics(10)
    registry = EdgeMetrics(CollectorRegistry(), statistics).registry
    assert registry.get_sample_value("isthmus_loss") is None
    statistics.steps = 5  # resumed, and no step is done yet
    assert registry.get_sample_value("isthmus_loss") is None
    statistics.loss = float("nan")
    assert math.isnan(registry.get_sample_value("isthmus_loss")), "or nobody would be told that the run has diverged"


def test_every_error_code_has_its_series_from_the_start():
    metrics = TrainingMetrics(CollectorRegistry())
    codes = {labels["code"] for name, labels, _ in series(metrics.registry) if name == "isthmus_errors_total"}
    assert codes == {code.name for code in grpc.StatusCode} - {"OK"}
    metrics.failed(grpc.StatusCode.NOT_FOUND)
    counted = {labels["code"]: value for name, labels, value in series(metrics.registry) if value}
    assert counted == {"NOT_FOUND": 1.0}


def test_a_sessions_series_end_with_it():
    metrics, sessions = TrainerMetrics(CollectorRegistry()), HeldSessions()
    metrics.watch(sessions)
    sessions.built.append(OpenSession())
    value = metrics.registry.get_sample_value
    assert value("isthmus_sessions") == 1
    assert value("isthmus_session_steps_total", {"session": "5e55"}) == 7
    assert value("isthmus_session_codec_bit_width", {"session": "5e55", "direction": "up"}) == 4
    assert value("isthmus_session_codec_bit_width", {"session": "5e55", "direction": "down"}) == 32
    assert value("isthmus_session_payload_bytes_total", {"session": "5e55", "direction": "up"}) == 900
    assert value("isthmus_session_payload_bytes_total", {"session": "5e55", "direction": "down"}) == 300
    assert value("isthmus_session_link_bytes_per_second", {"session": "5e55", "link": "gpu>edge"}) == 1e6
    assert value("isthmus_session_link_bytes_per_second", {"session": "5e55", "link": "gpu>far"}) is None, "not known"
    sessions.built.clear()
    assert value("isthmus_sessions") == 0
    assert not [name for name, labels, _ in series(metrics.registry) if "session" in labels]


def test_a_place_that_is_only_reserved_counts_and_has_no_series():
    metrics, sessions = TrainerMetrics(CollectorRegistry()), HeldSessions()
    metrics.watch(sessions)
    sessions.reserved += 1
    assert metrics.registry.get_sample_value("isthmus_sessions") == 1
    assert not [name for name, labels, _ in series(metrics.registry) if "session" in labels]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
@pytest.mark.parametrize("registry", [edge(), trainer(session=True)])
def test_prometheus_finds_nothing_to_say_about_them(registry):
    text = b"".join(
        line + b"\n" for line in generate_latest(registry).splitlines() if b"process_" not in line
    )  # names that others have chosen
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, check=False)
    assert (done.returncode, done.stderr.decode()) == (0, "")
