"""A link's choice of the next tensor to send, and of those that go with it."""

import pytest
import torch

from shared.execution.step_in_flight import Parcel
from shared.placement import Cargo, Crossing, Exchange, Rows, bundles
from shared.runtime.outbox import MOST_WAITING_BYTES, Outbox
from shared.runtime.resend_buffer import ResendBuffer

WHOLE, BEGUN = Rows(0, 4), 8
LABELS, FEATURE = Crossing("edge", "gpu", Cargo.LABEL, 4, WHOLE), Crossing("edge", "gpu", Cargo.FEATURE, 1, WHOLE)


def outbox(labelled: Crossing | None = FEATURE) -> Outbox:
    return Outbox((FEATURE, LABELS), 0, labelled)


def put(box: Outbox, crossing: Crossing, step: int, size: int = 8) -> None:
    box.put(Parcel(step, 4, crossing, (torch.zeros(size, dtype=torch.uint8),)))


def next_of(box: Outbox) -> list[tuple[Crossing, int]]:
    return [(item.crossing, item.step) for item in box.next(BEGUN)]


def test_the_next_tensor_is_found_without_a_look_at_all_crossings(monkeypatch):
    looked_at = []
    monkeypatch.setattr(
        ResendBuffer,
        "first_unsent",
        lambda buffer, found=ResendBuffer.first_unsent: looked_at.append(buffer) or found(buffer),
    )
    several = tuple(Crossing("edge", "gpu", Cargo.FEATURE, block, WHOLE) for block in range(1000))
    box = Outbox(several, 0)
    for block in (700, 300):
        put(box, several[block], 0)
    order = []
    while items := box.next(BEGUN):
        order += [item.crossing.index for item in items]
        for item in items:
            box.note_sent(item)
    assert order == [300, 700]
    assert len(looked_at) < 10


def test_small_labels_go_with_their_feature():
    box = outbox()
    put(box, LABELS, 0)
    assert next_of(box) == []
    put(box, FEATURE, 0)
    assert next_of(box) == [(LABELS, 0), (FEATURE, 0)]
    for item in box.next(BEGUN):
        box.note_sent(item)
    assert next_of(box) == []


@pytest.mark.parametrize(("size", "waits"), [(MOST_WAITING_BYTES, True), (MOST_WAITING_BYTES + 1, False)])
def test_large_labels_do_not_wait(size, waits):
    box = outbox()
    put(box, LABELS, 0, size)
    assert next_of(box) == ([] if waits else [(LABELS, 0)])


def test_labels_without_a_feature_to_go_with_go_at_once():
    box = outbox(None)
    put(box, LABELS, 0)
    assert next_of(box) == [(LABELS, 0)]


def test_labels_of_later_steps_do_not_hold_a_feature_up():
    box = outbox()
    for step in (0, 1):
        put(box, LABELS, step)
    put(box, FEATURE, 0)
    box.resume({LABELS: 1})  # The peer has the labels of step 0.
    assert next_of(box) == [(FEATURE, 0)]


def test_labels_whose_feature_the_peer_has_go_alone():
    box = outbox()
    put(box, LABELS, 0)
    put(box, FEATURE, 0)
    box.resume({FEATURE: 1})
    assert next_of(box) == [(LABELS, 0)]


def test_of_weights_that_wait_the_first_block_of_the_oldest_step_goes_first_and_features_before_them():
    rows = Rows(0, 4)
    weights = [Crossing("edge", "gpu", Cargo.WEIGHTS, block, rows) for block in range(3)]
    box = Outbox((FEATURE, *weights), 0)
    for step in (0, 1):
        for crossing in reversed(weights):
            put(box, crossing, step)
    put(box, FEATURE, 0)
    order = []
    while items := box.next(BEGUN):
        order += [(item.crossing, item.step) for item in items]
        for item in items:
            box.note_sent(item)
    assert order == [(FEATURE, 0), *((crossing, step) for step in (0, 1) for crossing in weights)]


@pytest.mark.parametrize(("merged", "expected"), [(False, [2, 1, 0]), (True, [0, 1, 2])])
def test_of_gradients_to_a_group_that_wait_the_first_block_goes_first(merged, expected):
    parts = tuple(Crossing("edge", "gpu", Cargo.WEIGHT_GRADIENT, block, WHOLE) for block in range(3))
    box = Outbox(parts, 0, merged=merged)
    for part in parts:
        put(box, part, 0)
    order = []
    while items := box.next(BEGUN):
        order += [item.crossing.index for item in items]
        for item in items:
            box.note_sent(item)
    assert order == expected


def test_a_lost_stream_brings_weights_back_to_their_place():
    rows = Rows(0, 4)
    first, second = (Crossing("edge", "gpu", Cargo.WEIGHTS, block, rows) for block in range(2))
    box = Outbox((first, second), 0)
    for step in (0, 1):
        for crossing in (first, second):
            put(box, crossing, step)
    while items := box.next(BEGUN):
        for item in items:
            box.note_sent(item)
    box.resume({second: 0})
    assert next_of(box) == [(second, 0)]
    box.resume({first: 1})
    assert next_of(box) == [(second, 0)], "it is of an older step"
    for item in box.next(BEGUN):
        box.note_sent(item)
    assert next_of(box) == [(first, 1)]


def test_samples_of_a_step_that_has_not_begun_wait_for_all_else_and_small_labels_for_them():
    samples, gradient = (Crossing("edge", "gpu", cargo, 0, WHOLE) for cargo in (Cargo.FEATURE, Cargo.WEIGHT_GRADIENT))
    box = Outbox((samples, LABELS, gradient), 0, samples)
    for step in (0, 1):
        put(box, LABELS, step)
        put(box, samples, step)
    put(box, gradient, 0)
    order = []
    while items := box.next(1):
        order.append([(item.crossing, item.step) for item in items])
        for item in items:
            box.note_sent(item)
    assert order == [[(LABELS, 0), (samples, 0)], [(gradient, 0)], [(LABELS, 1), (samples, 1)]]


def segment_box() -> tuple[Outbox, list[Crossing]]:
    """Return the box of an owner whose blocks 0 and 1 go together, behind a barrier, and the crossings."""
    weights = [Crossing("near", "edge", Cargo.WEIGHTS, block, WHOLE) for block in range(3)]
    together = bundles(Exchange(((0, 3),), ((0, 2), (2, 3)), barrier=True), weights)
    return Outbox(tuple(weights), 0, bundles=together), weights


def test_weights_wait_for_all_and_leave_by_their_segments():
    box, weights = segment_box()
    put(box, weights[2], 0)
    put(box, weights[1], 0)
    assert next_of(box) == []
    put(box, weights[0], 0)
    order = []
    while items := box.next(1):
        order.append([item.crossing.index for item in items])
        for item in items:
            box.note_sent(item)
    assert order == [[0, 1], [2]]


def test_of_a_segment_that_came_in_part_the_rest_is_sent_again():
    box, weights = segment_box()
    for crossing in weights:
        put(box, crossing, 0)
    for item in box.next(1):
        box.note_sent(item)
    box.resume(dict(zip(weights, (1, 0, 0), strict=True)))
    assert next_of(box) == [(weights[1], 0)]
