"""The metrics of an agent follow the events of its run."""

import grpc
from prometheus_client import CollectorRegistry

from edge_agent.observability.metrics import EdgeMetrics
from edge_agent.observability.observer import RunObserver
from edge_agent.training.statistics import Statistics
from shared.events import Events
from shared.events.calls import CallFailed


def test_a_failed_call_is_counted_by_its_status():
    registry, statistics, events = CollectorRegistry(), Statistics(1), Events()
    RunObserver(statistics, EdgeMetrics(registry, statistics), events)
    events.emit(CallFailed(grpc.StatusCode.UNAVAILABLE))
    counted = {
        sample.labels.get("code"): sample.value
        for metric in registry.collect()
        for sample in metric.samples
        if sample.name == "isthmus_errors_total"
    }
    assert counted["UNAVAILABLE"] == 1.0
    assert sum(counted.values()) == 1.0
