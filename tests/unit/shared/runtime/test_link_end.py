"""Invalid messages of a peer on a link: each is refused with one sentence, before memory is taken, and changes nothing."""

import asyncio
import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.errors import IsthmusError, RefusedError, UnreachableError
from shared.model.chain import build_chain
from shared.placement import Placement, Rows, Source, Tile
from shared.runtime.link_end import POSITION_SECONDS
from shared.wire.isthmus.v1.link_pb2 import Awaited, LinkPosition, StepDone
from shared.wire.isthmus.v1.tensor_pb2 import DataType, Frame, Role, TensorHeader
from tests.support.begun_again import LosingSession
from tests.support.examples import examples
from tests.support.linked import LinkedSession
from tests.support.linking import announce, still_stream
from tests.support.models import several
from tests.support.placed import INPUTS, WIDTH, batch_of, built, recipe
from tests.support.virtual import run_virtually

pytestmark = pytest.mark.usefixtures("one_thread")
WHOLE = Rows(0, 4)
LABELS_STAY = Placement(
    version=2,
    blocks=4,
    batch_size=4,
    workers=("edge", "near"),
    tiles=(Tile("edge", 0, 1, WHOLE), Tile("near", 1, 3, WHOLE), Tile("edge", 3, 4, WHOLE)),
    sources=(Source("edge", WHOLE),),
)


def frame(
    role: Role.ValueType, block: int, width: int = WIDTH, *, rows: int = 4, step: int = 0, samples: int = 4, **changes
) -> Frame:
    """Build an announcement of float32."""
    header = TensorHeader(
        codec="raw",
        dtype=DataType.DATA_TYPE_FLOAT32,
        shape=(rows, width),
        strides=(width, 1),
        encoded_bytes=rows * width * 4,
    )
    announced = Frame(step=step, role=role, block=block, placement_version=2, batch_samples=samples, tensor=header)
    announced.MergeFrom(Frame(**changes))
    return announced


SHARED = Placement(
    version=1,
    blocks=4,
    batch_size=4,
    workers=("edge", "near", "far"),
    tiles=(
        Tile("far", 0, 2, Rows(0, 2)),
        Tile("edge", 0, 1, Rows(2, 4)),
        Tile("near", 1, 2, Rows(2, 4)),
        Tile("near", 2, 4, WHOLE),
    ),
    sources=(Source("edge", WHOLE),),
    owners={0: "near", 1: "near"},
)
"""The far worker owns nothing, so that it may begin again."""
AWAITED = [Awaited(role=Role.ROLE_FEATURE, block=3), Awaited(role=Role.ROLE_ERROR_GRADIENT, block=1)]
"""Tensors that the other end of `near_end` waits for."""


def near_end():
    """Build the trainer's end of the link, in a session that has not begun."""

    async def main() -> LinkedSession:
        return LinkedSession(built("dropping"), LABELS_STAY, recipe("sgd"))

    return run_virtually(main).workers["near"].ends["edge"]


@pytest.mark.parametrize(
    ("announced", "says"),
    [
        (frame(Role.ROLE_LABEL, 4, 1), "who has none to send"),
        (frame(Role.ROLE_FEATURE, 0, INPUTS), "who has none to send"),
        (frame(Role.ROLE_FEATURE, 4), "who has none to send"),
        (frame(Role.ROLE_BLOCK, 1), "who has none to send"),
        (frame(Role.ROLE_WEIGHTS, 1), "who has none to send"),
        (frame(Role.ROLE_FEATURE, 1, step=1), "step 0 is next"),
        (frame(Role.ROLE_FEATURE, 1, samples=5, rows=5), "a batch of 5 samples; it has 1 to 4"),
        (frame(Role.ROLE_FEATURE, 1, samples=0, rows=0), "a batch of 0 samples; it has 1 to 4"),
        (frame(Role.ROLE_FEATURE, 1, samples=3), r"torch.float32 \(3, 6\) was expected"),
        (frame(Role.ROLE_FEATURE, 1, WIDTH + 1), "was expected"),
        (frame(Role.ROLE_FEATURE, 1, slot=1), "who has none to send"),
        (frame(Role.ROLE_FEATURE, 1, placement_version=3), "placement 3"),
        (frame(Role.ROLE_FEATURE, 1, tensor=TensorHeader(codec="uniform8")), "is agreed"),
    ],
)
def test_a_tensor_of_no_placement_is_refused_and_leaves_nothing(announced, says):
    end = near_end()
    with pytest.raises(IsthmusError, match=says):
        announce(end, announced)
    announce(end, frame(Role.ROLE_FEATURE, 1))


def test_a_third_party_gets_neither_labels_nor_outputs():
    """Labels stay: only features and error gradients of its own blocks may come to the trainer."""
    end = near_end()
    crossing = {(one.role, one.block) for one in end.position.awaited}
    assert crossing == {(Role.ROLE_FEATURE, 1), (Role.ROLE_ERROR_GRADIENT, 3)}


class Refusing:
    """A stream that its peer has refused: a write fails, and gRPC gives the reason only once the stream is read."""

    def __init__(self) -> None:
        self._is_read = asyncio.Event()

    async def write(self, _message):
        """Write as `Duplex` does."""
        await asyncio.wait_for(self._is_read.wait(), 1.0)
        raise RefusedError("no place")

    async def receive(self):
        """Receive as `Duplex` does."""
        self._is_read.set()
        raise RefusedError("no place")


async def test_the_reason_of_a_refusal_is_read_before_a_position_can_be_written():
    session = LinkedSession(built("dropping"), LABELS_STAY, recipe("sgd"))
    with pytest.raises(RefusedError, match="no place"):
        await session.workers["near"].ends["edge"].run(Refusing())


def test_a_peer_that_opens_a_link_and_does_not_say_where_it_stands_is_given_up():
    async def main() -> None:
        session = LinkedSession(built("dropping"), LABELS_STAY, recipe("sgd"))
        begun = asyncio.get_running_loop().time()
        with pytest.raises(UnreachableError, match="has not said in 30 seconds where it stands"):
            await session.workers["near"].ends["edge"].run(still_stream())
        assert asyncio.get_running_loop().time() == begun + POSITION_SECONDS

    run_virtually(main)


@pytest.mark.parametrize(
    ("position", "says"),
    [
        (LinkPosition(placement_version=1), "holds placement 1; 2 is in force"),
        (LinkPosition(placement_version=2), "waits for something else"),
        (LinkPosition(placement_version=2, dones_received=1), "waits for something else"),
        (LinkPosition(placement_version=2, awaited=[*AWAITED, AWAITED[0]]), "waits for something else"),
        (LinkPosition(placement_version=2, awaited=AWAITED, life=1), "has begun again, which it cannot"),
    ],
)
def test_an_impossible_position_is_refused(position, says):
    with pytest.raises(IsthmusError, match=says):
        near_end().resume(position)


@pytest.mark.parametrize(
    ("awaited", "dones_received"),
    [([], 0), ([Awaited(role=Role.ROLE_FEATURE, next_step=9)], 0), ([Awaited(role=Role.ROLE_FEATURE)], 1)],
)
def test_an_impossible_position_of_a_peer_that_has_begun_again_changes_nothing(awaited, dones_received):
    """The reports stay that wait for it, and the life in which it is."""

    async def main() -> None:
        session = LosingSession(built("dropping"), SHARED, recipe("adam"), "far", [])
        end, peer = session.workers["edge"].ends["far"], session.workers["far"].ends["edge"]
        reports = [StepDone(worker="edge", step=step) for step in range(2)]
        for done in reports:
            end.reports.add(done, more_comes=False)
        wrong = LinkPosition(placement_version=1, awaited=awaited, dones_received=dones_received, life=1)
        with pytest.raises(IsthmusError):
            end.resume(wrong)
        end.resume(peer.position)
        assert list(end.reports.take().dones) == reports

    run_virtually(main)


def test_a_peer_cannot_wait_for_a_step_that_was_not_made():
    ahead = [Awaited(role=Role.ROLE_FEATURE, block=3, next_step=1), Awaited(role=Role.ROLE_ERROR_GRADIENT, block=1)]
    with pytest.raises(IsthmusError, match="feature 3 of step 1; steps 0 to 0 can be sent"):
        near_end().resume(LinkPosition(placement_version=2, awaited=ahead))


@pytest.mark.parametrize(("worker", "step"), [("near", 1), ("edge", 0), ("nobody", 0), ("near", 9)])
def test_a_peer_cannot_say_of_others_or_of_other_steps_that_they_are_done(worker, step):
    async def main() -> None:
        session = LinkedSession(built("dropping"), replace(LABELS_STAY, staleness=1), recipe("sgd"))
        edge, near = session.workers["edge"], session.workers["near"]
        near.ends["edge"].reports.add(StepDone(worker=worker, step=step), more_comes=False)
        with pytest.raises(IsthmusError, match=r"is next|others pass that on"):
            await session.train([batch_of(0, 4)])
        assert edge is not near

    run_virtually(main)


NUMBERS = st.one_of(st.integers(0, 5), st.integers(0, 2**32 - 1))
FRAMES = st.builds(
    Frame,
    step=st.one_of(st.integers(0, 2), st.integers(0, 2**64 - 1)),
    role=st.sampled_from(Role.values()),
    block=NUMBERS,
    slot=NUMBERS,
    placement_version=st.sampled_from([2, 2, 3]),
    batch_samples=NUMBERS,
    tensor=st.builds(
        TensorHeader,
        codec=st.sampled_from(["raw", "fp32", "uniform8", "nothing"]),
        dtype=st.sampled_from(DataType.values()),
        shape=st.lists(st.one_of(st.sampled_from([4, WIDTH]), NUMBERS), max_size=4),
        strides=st.lists(st.one_of(st.sampled_from([1, WIDTH]), NUMBERS), max_size=4),
        encoded_bytes=st.one_of(st.just(4 * WIDTH * 4), st.integers(0, 2**64 - 1)),
    ),
)


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(FRAMES, min_size=1, max_size=4))
def test_only_announcements_of_the_placement_are_accepted(announced):
    end = near_end()
    for one in announced:
        try:
            announce(end, one)
        except IsthmusError:
            continue
        assert (one.role, one.block, one.slot) in {(Role.ROLE_FEATURE, 1, 0), (Role.ROLE_ERROR_GRADIENT, 3, 0)}
        assert one.tensor.encoded_bytes <= 4 * WIDTH * 4


def short(slot: int, length: int) -> Frame:
    """Build the announcement of a mask, which is slot 0, or of a feature beside it, for a batch of this length."""
    shape = (4, length) if slot == 0 else (4, length, several.WIDTH)
    dtype, each = (DataType.DATA_TYPE_BOOL, 1) if slot == 0 else (DataType.DATA_TYPE_FLOAT32, 4)
    strides = (length, 1) if slot == 0 else (length * several.WIDTH, several.WIDTH, 1)
    header = TensorHeader(codec="raw", dtype=dtype, shape=shape, strides=strides, encoded_bytes=each * math.prod(shape))
    return Frame(role=Role.ROLE_FEATURE, block=1, slot=slot, placement_version=2, batch_samples=4, tensor=header)


def varying_end():
    """Build the trainer's end of the link where batches have lengths of their own, up to 6."""

    async def main() -> LinkedSession:
        tokens = torch.randint(11, (4, several.LENGTH), generator=torch.Generator().manual_seed(1))
        inputs = {"input_ids": tokens, "attention_mask": tokens > 2}
        make_chain = partial(build_chain, example=inputs, length_varies=True)
        return LinkedSession(several.NamedEncoder(), LABELS_STAY, recipe("sgd"), make_chain=make_chain)

    return run_virtually(main).workers["near"].ends["edge"]


@pytest.mark.parametrize("length", [several.LENGTH + 1, 10**12, 0])
def test_a_length_beyond_the_examples_is_refused_before_memory_is_taken_for_it(length):
    end = varying_end()
    with pytest.raises(IsthmusError, match=r"\(4, 6\) was expected, or what it is for a length of 1 to 6"):
        announce(end, short(0, length))
    for slot in (0, 1):
        announce(end, short(slot, several.LENGTH))


def test_all_tensors_of_a_step_have_one_length():
    end = varying_end()
    announce(end, short(0, 5))
    with pytest.raises(IsthmusError, match="a tensor of step 0 came from 'edge' for a length of 4; it has 5"):
        announce(end, short(1, 4))
    announce(end, short(1, 5))
