"""A trainer's figures up and down: the direction depends on the worker that is farther from the edge."""

from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry

from cloud_trainer.sessions.worker.figures import SessionFigures
from shared.events import Events
from shared.events.worker import Delivered, Received, Sent
from shared.placement import Placement, Rows, Source, Tile
from shared.telemetry.metrics import TrainingMetrics
from shared.transport.stream.framing import TensorKey, WireTensor
from shared.wire.isthmus.v1.tensor_pb2 import Role, TensorHeader

WHOLE = Rows(0, 4)
CHAIN = Placement(
    version=0,
    blocks=4,
    batch_size=4,
    workers=("edge", "near", "far"),
    tiles=(Tile("edge", 0, 1, WHOLE), Tile("near", 1, 3, WHOLE), Tile("far", 3, 4, WHOLE)),
    sources=(Source("edge", WHOLE),),
)
FEATURE, GRADIENT, LABEL = Role.ROLE_FEATURE, Role.ROLE_ERROR_GRADIENT, Role.ROLE_LABEL


class Counting:
    """The figures of one worker, and their counters."""

    def __init__(self, worker):
        self._metrics = TrainingMetrics(CollectorRegistry())
        events = Events()
        self.emit = events.emit
        self.figures = SessionFigures(worker, self._metrics, events)
        self.figures.placed(CHAIN)

    def value(self, name, **labels):
        return self._metrics.registry.get_sample_value(name, labels)

    @property
    def counted(self):
        """Return the bytes of payload and of savings: up, then down."""
        names = "isthmus_payload_bytes_total", "isthmus_saved_bytes_total"
        return tuple(self.value(name, direction=way) for way in ("up", "down") for name in names)

    @property
    def phases(self):
        """Count the timed transfers up, and those down."""
        return tuple(self.value("isthmus_phase_seconds_count", phase=phase) for phase in ("uplink", "downlink"))


def tensor(role, count):
    return WireTensor(TensorKey(0, role, 1), 0, TensorHeader(), memoryview(bytes(count)), batch_samples=4)


@pytest.mark.parametrize(
    ("moved", "counted"),
    [
        (Received("edge", tensor(FEATURE, 10), 40), (10, 30, 0, 0)),
        (Sent("far", 10, 40), (10, 30, 0, 0)),
        (Received("far", tensor(GRADIENT, 10), 40), (0, 0, 10, 30)),
        (Sent("edge", 10, 40), (0, 0, 10, 30)),
    ],
    ids=["from the edge", "to a trainer", "from a trainer", "to the edge"],
)
def test_up_is_away_from_the_edge_and_down_is_back_on_both_links_of_a_worker_in_the_middle(moved, counted):
    near = Counting("near")
    near.emit(moved)
    assert near.counted == counted
    assert (near.figures.bytes_up, near.figures.bytes_down) == (counted[0], counted[2])


def test_received_and_sent_bytes_are_counted_besides():
    near = Counting("near")
    near.emit(Received("edge", tensor(FEATURE, 1), 1))
    near.emit(Received("far", tensor(GRADIENT, 2), 2))
    near.emit(Sent("edge", 4, 4))
    near.emit(Sent("far", 8, 8))
    assert (near.figures.received_bytes, near.figures.sent_bytes) == (3, 12)


def test_a_feature_that_has_arrived_at_a_trainer_farther_away_is_an_uplink_and_its_labels_are_not():
    near = Counting("near")
    near.emit(Delivered("far", tensor(FEATURE, 1), 0.5, 0))
    near.emit(Delivered("far", tensor(LABEL, 1), 0.5, 0))
    assert near.phases == (1, 0)
    assert near.value("isthmus_phase_seconds_sum", phase="uplink") == 0.5
    near.emit(Delivered("edge", tensor(GRADIENT, 1), 0.5, 0))
    assert near.phases == (1, 1)


def test_another_placement_turns_a_link_round():
    near = Counting("near")
    tiles = (Tile("edge", 0, 1, WHOLE), Tile("far", 1, 3, WHOLE), Tile("near", 3, 4, WHOLE))
    workers = ("edge", "far", "near")
    near.figures.placed(replace(CHAIN, version=1, workers=workers, tiles=tiles))
    near.emit(Received("far", tensor(FEATURE, 10), 10))
    assert near.counted == (10, 0, 0, 0)
