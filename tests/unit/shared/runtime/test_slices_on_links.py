"""Invalid slices of a peer in a group: each is refused before memory is taken for it, and changes nothing."""

import pytest

from shared import slicing
from shared.errors import IsthmusError
from shared.placement import Cargo, Crossing, Rows
from shared.runtime.forms import Forms
from shared.training import slices
from shared.wire.isthmus.v1.link_pb2 import LinkPosition
from shared.wire.isthmus.v1.tensor_pb2 import DataType, Frame, Role, TensorHeader
from tests.support.group_members import SAMPLES, copies
from tests.support.linking import announce
from tests.support.placed import built, recipe
from tests.support.placed_session import PlacedSession
from tests.support.virtual import run_virtually

pytestmark = pytest.mark.usefixtures("one_thread")
BLOCK, COUNT = 1, 3
"""A block of several slices in these tests."""


@pytest.fixture(autouse=True)
def _small_slices(monkeypatch):
    monkeypatch.setattr(slicing, "SLICE_BYTES", 64)
    monkeypatch.setattr(slices, "UNIT", 8)


def trainers_end():
    """Build the trainer's end of a member's link, in a session that has not begun, and the forms of the same model."""

    async def main():
        session = PlacedSession(built("dropping"), copies(4), recipe("adam"), give=lambda _one: None)
        forms = Forms(copies(4), session.chains["edge"], lambda _labels: None, recipe("adam"), merged=True)
        return session.executors["near"].ends["edge"], forms

    return run_virtually(main)


def announced(forms, number, entry=0):
    """Return the right announcement of a tensor of a slice."""
    crossing = Crossing("edge", "near", Cargo.WEIGHT_GRADIENT, BLOCK, Rows(0, SAMPLES), (number,))
    slot, one = list(forms.of(crossing).entries.items())[entry]
    spec = one.spec
    header = TensorHeader(
        codec="raw",
        dtype=DataType.DATA_TYPE_FLOAT32,
        shape=spec.shape,
        strides=[1] * len(spec.shape),
        encoded_bytes=spec.bytes,
    )
    return Frame(step=0, role=Role.ROLE_WEIGHT_GRADIENT, block=BLOCK, slot=slot, batch_samples=SAMPLES, tensor=header)


def changed(frame, slot=None, shape=None, encoded_bytes=None):
    """Return an announcement with something else in it."""
    frame.slot = frame.slot if slot is None else slot
    if shape is not None:
        frame.tensor.ClearField("shape")
        frame.tensor.shape.extend(shape)
    frame.tensor.encoded_bytes = frame.tensor.encoded_bytes if encoded_bytes is None else encoded_bytes
    return frame


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"slot": 99}, "who has none to send"),
        ({"slot": 2**32 - 1}, "who has none to send"),
        ({"shape": (6, 6)}, "was expected"),
        ({"shape": (2**40,)}, "was expected"),
        ({"encoded_bytes": 2**40}, "bytes"),
        ({"encoded_bytes": 4}, "bytes"),
    ],
)
def test_a_slice_of_another_number_or_size_is_refused_and_leaves_nothing(change, says):
    end, forms = trainers_end()
    for number in range(COUNT):
        with pytest.raises(IsthmusError, match=says):
            announce(end, changed(announced(forms, number), **change))
    for number in reversed(range(COUNT)):
        announce(end, announced(forms, number))


def test_a_slice_comes_once_a_step():
    end, forms = trainers_end()
    announce(end, announced(forms, COUNT - 1))
    with pytest.raises(IsthmusError, match="step 1 is next"):
        announce(end, announced(forms, COUNT - 1))


def test_a_peer_that_waits_for_slices_that_there_are_not_is_refused():
    end, _ = trainers_end()
    waiting = [
        (Role.ROLE_WEIGHTS, one.block, one.slot) for one in end.position.awaited if one.role != Role.ROLE_WEIGHTS
    ]
    assert (Role.ROLE_WEIGHTS, BLOCK, COUNT - 1) in waiting

    def position(pairs):
        return LinkPosition(
            awaited=[{"role": role, "block": block, "slot": number, "next_step": 1} for role, block, number in pairs]
        )

    first, *others = waiting
    for wrong in (others, [*waiting, first], [(*first[:2], 99), *others], [others[0], *others]):
        with pytest.raises(IsthmusError, match="waits for something else"):
            end.resume(position(wrong))
    end.resume(position(waiting))
