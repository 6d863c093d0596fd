"""A link's choice of the next tensor to send, and of those that go with it."""

import pytest
import torch

from shared.execution.step_in_flight import Parcel
from shared.placement import Cargo, Crossing, Exchange, Rows
from shared.runtime.channel import Channel
from shared.runtime.outbox import MOST_WAITING_BYTES, Outbox
from tests.support.channels import channels

WHOLE, BEGUN = Rows(0, 4), 8
LABELS, FEATURE = Crossing("edge", "gpu", Cargo.LABEL, 4, WHOLE), Crossing("edge", "gpu", Cargo.FEATURE, 1, WHOLE)


def outbox(labelled: Crossing | None = FEATURE) -> Outbox:
    feature, labels = channels((FEATURE, LABELS))
    return Outbox([feature, labels], feature if labelled else None)


def put(box: Outbox, crossing: Crossing, step: int, size: int = 8) -> None:
    box.put(of(box, crossing), Parcel(step, 4, crossing, (torch.zeros(size, dtype=torch.uint8),)))


def of(box: Outbox, crossing: Crossing) -> Channel:
    return next(channel for channel in box.channels if channel.crossing == crossing)


def next_of(box: Outbox, begun: int = BEGUN) -> list[tuple[Crossing, int]]:
    return [(channel.crossing, parcel.step) for channel, parcel in box.next(begun)]


def send_next(box: Outbox, begun: int = BEGUN) -> list[tuple[Crossing, int]]:
    """Send what goes next, and return it."""
    sent = next_of(box, begun)
    for crossing, step in sent:
        box.note_sent(of(box, crossing), step)
    return sent


def send_all(box: Outbox, begun: int = BEGUN) -> list[list[tuple[Crossing, int]]]:
    """Send all that waits, and return it by what went together."""
    return list(iter(lambda: send_next(box, begun), []))


def test_the_next_tensor_is_found_without_a_look_at_all_crossings(monkeypatch):
    looked_at = []
    monkeypatch.setattr(
        Channel,
        "first_waiting",
        lambda channel, found=Channel.first_waiting: looked_at.append(channel) or found(channel),
    )
    several = tuple(Crossing("edge", "gpu", Cargo.FEATURE, block, WHOLE) for block in range(1000))
    box = Outbox(channels(several))
    for block in (700, 300):
        put(box, several[block], 0)
    assert [crossing.index for together in send_all(box) for crossing, _ in together] == [300, 700]
    assert len(looked_at) < 10


def test_small_labels_go_with_their_feature():
    box = outbox()
    put(box, LABELS, 0)
    assert next_of(box) == []
    put(box, FEATURE, 0)
    assert send_next(box) == [(LABELS, 0), (FEATURE, 0)]
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
    box.resume([(of(box, LABELS), 1)])  # The peer has the labels of step 0.
    assert next_of(box) == [(FEATURE, 0)]


def test_labels_whose_feature_the_peer_has_go_alone():
    box = outbox()
    put(box, LABELS, 0)
    put(box, FEATURE, 0)
    box.resume([(of(box, FEATURE), 1)])
    assert next_of(box) == [(LABELS, 0)]


def test_of_weights_that_wait_the_first_block_of_the_oldest_step_goes_first_and_features_before_them():
    rows = Rows(0, 4)
    weights = [Crossing("edge", "gpu", Cargo.WEIGHTS, block, rows) for block in range(3)]
    box = Outbox(channels((FEATURE, *weights)))
    for step in (0, 1):
        for crossing in reversed(weights):
            put(box, crossing, step)
    put(box, FEATURE, 0)
    order = [one for together in send_all(box) for one in together]
    assert order == [(FEATURE, 0), *((crossing, step) for step in (0, 1) for crossing in weights)]


@pytest.mark.parametrize(("merged", "expected"), [(False, [2, 1, 0]), (True, [0, 1, 2])])
def test_of_gradients_to_a_group_that_wait_the_first_block_goes_first(merged, expected):
    parts = tuple(Crossing("edge", "gpu", Cargo.WEIGHT_GRADIENT, block, WHOLE) for block in range(3))
    box = Outbox(channels(parts), merged=merged)
    for part in parts:
        put(box, part, 0)
    assert [crossing.index for together in send_all(box) for crossing, _ in together] == expected


def test_a_lost_stream_brings_weights_back_to_their_place():
    rows = Rows(0, 4)
    first, second = (Crossing("edge", "gpu", Cargo.WEIGHTS, block, rows) for block in range(2))
    box = Outbox(channels((first, second)))
    for step in (0, 1):
        for crossing in (first, second):
            put(box, crossing, step)
    send_all(box)
    box.resume([(of(box, second), 0)])
    assert next_of(box) == [(second, 0)]
    box.resume([(of(box, first), 1)])
    assert send_next(box) == [(second, 0)], "it is of an older step"
    assert next_of(box) == [(first, 1)]


def test_samples_of_a_step_that_has_not_begun_wait_for_all_else_and_small_labels_for_them():
    samples, gradient = (Crossing("edge", "gpu", cargo, 0, WHOLE) for cargo in (Cargo.FEATURE, Cargo.WEIGHT_GRADIENT))
    found = channels((samples, LABELS, gradient))
    box = Outbox(found, found[0])
    for step in (0, 1):
        put(box, LABELS, step)
        put(box, samples, step)
    put(box, gradient, 0)
    assert send_all(box, 1) == [[(LABELS, 0), (samples, 0)], [(gradient, 0)], [(LABELS, 1), (samples, 1)]]


def segment_box() -> tuple[Outbox, list[Crossing]]:
    """Return the box of an owner whose blocks 0 and 1 go together, behind a barrier, and the crossings."""
    weights = [Crossing("near", "edge", Cargo.WEIGHTS, block, WHOLE) for block in range(3)]
    return Outbox(channels(weights), exchange=Exchange(((0, 3),), ((0, 2), (2, 3)), barrier=True)), weights


def test_weights_wait_for_all_and_leave_by_their_segments():
    box, weights = segment_box()
    put(box, weights[2], 0)
    put(box, weights[1], 0)
    assert next_of(box) == []
    put(box, weights[0], 0)
    assert [[crossing.index for crossing, _ in together] for together in send_all(box, 1)] == [[0, 1], [2]]


def test_of_a_segment_that_came_in_part_the_rest_is_sent_again():
    box, weights = segment_box()
    for crossing in weights:
        put(box, crossing, 0)
    send_next(box, 1)
    box.resume(list(zip(box.channels, (1, 0, 0), strict=True)))
    assert next_of(box) == [(weights[1], 0)]
