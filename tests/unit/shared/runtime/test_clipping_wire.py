"""Norms, coefficients and scales of a peer: one of each a step, in turn, of the right form, and numbers that they can be."""

import math

import pytest
import torch

from shared.codec import codec_by_name
from shared.errors import IsthmusError, ProtocolError
from shared.placement import Cargo, Placement, Rows, Source, Tile
from shared.registry import Precision
from shared.wire.isthmus.v1.tensor_pb2 import DataType, Frame, Role, TensorHeader
from tests.support.linked import LinkedSession
from tests.support.linking import announce
from tests.support.placed import built, recipe
from tests.support.virtual import run_virtually

WHOLE = Rows(0, 4)
CHAIN = Placement(
    version=2,
    blocks=4,
    batch_size=4,
    workers=("edge", "near", "far"),
    tiles=(Tile("edge", 0, 1, WHOLE), Tile("near", 1, 3, WHOLE), Tile("far", 3, 4, WHOLE)),
    sources=(Source("edge", WHOLE),),
)
COEFFICIENT, NORMS, SCALE = Role.ROLE_COEFFICIENT, Role.ROLE_NORMS, Role.ROLE_SCALE
SCALED_ALONE = "where the loss is not scaled"
PARAMETERS = 4
"""Count of the parameters of the nearer trainer."""


def linked(clip: str = "model", precision: Precision = "fp32") -> LinkedSession:
    async def main() -> LinkedSession:
        return LinkedSession(built("dropping"), CHAIN, recipe("sgd", 0.5, precision, clip=clip))

    return run_virtually(main)


def frame(
    role: Role.ValueType, count: int, step: int = 0, dtype: DataType.ValueType = DataType.DATA_TYPE_FLOAT64
) -> Frame:
    size = 8 if dtype == DataType.DATA_TYPE_FLOAT64 else 4
    header = TensorHeader(codec="raw", dtype=dtype, shape=(count,), strides=(1,), encoded_bytes=size * count)
    return Frame(step=step, role=role, placement_version=2, batch_samples=4, tensor=header)


@pytest.mark.parametrize(
    ("worker", "peer", "role", "count"),
    [("near", "edge", COEFFICIENT, 1), ("edge", "near", NORMS, PARAMETERS), ("near", "edge", SCALE, 1)],
)
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_one_comes_in_each_step_and_of_one_form(worker, peer, role, count, precision):
    end = linked(precision=precision).workers[worker].ends[peer]
    if role == SCALE and precision == "fp32":
        with pytest.raises(ProtocolError, match="who has none to send"):
            announce(end, frame(role, count))
        return
    absent = Frame(step=0, role=role, placement_version=2, batch_samples=4, tensor=TensorHeader(is_absent=True))
    for announced, says in [
        (frame(role, count, step=1), "step 0 is next"),
        (frame(role, count + 1), "was expected"),
        (frame(role, count, dtype=DataType.DATA_TYPE_FLOAT32), "was expected"),
        (absent, "is said to be absent"),
    ]:
        with pytest.raises(IsthmusError, match=says):
            announce(end, announced)
    announce(end, frame(role, count))
    with pytest.raises(IsthmusError, match="step 1 is next"):
        announce(end, frame(role, count))


def test_neither_comes_where_blocks_are_clipped_by_themselves_or_from_one_who_has_none():
    with pytest.raises(ProtocolError, match="who has none to send"):
        announce(linked("block").workers["near"].ends["edge"], frame(COEFFICIENT, 1))
    session = linked()
    with pytest.raises(ProtocolError, match="who has none to send"):
        announce(session.workers["near"].ends["edge"], frame(NORMS, PARAMETERS))
    with pytest.raises(ProtocolError, match="who has none to send"):
        announce(session.workers["near"].ends["far"], frame(COEFFICIENT, 1))


@pytest.mark.parametrize(
    ("cargo", "numbers", "says"),
    [
        (Cargo.NORMS, [0.0, 1.0, math.inf, -1.0], None),
        (Cargo.NORMS, [0.0, 1.0, math.nan, -1.0], "norms of gradients came of which one is no norm"),
        (Cargo.NORMS, [0.0, 1.0, -0.5, -1.0], "each is 0 or more, or -1 where there is no gradient"),
        (Cargo.COEFFICIENT, [0.0], None),
        (Cargo.COEFFICIENT, [1.0], None),
        (Cargo.COEFFICIENT, [1.5], "gradients are to be scaled by 1.5; a coefficient is from 0 to 1"),
        (Cargo.COEFFICIENT, [-0.5], "gradients are to be scaled by -0.5"),
        (Cargo.COEFFICIENT, [math.nan], "gradients are to be scaled by nan"),
        (Cargo.NORMS, [0.0, 1.0, -2.0, -1.0], SCALED_ALONE),
        (Cargo.COEFFICIENT, [-1.0], SCALED_ALONE),
        (Cargo.SCALE, [2.0**16], None),
        (Cargo.SCALE, [0.5], None),
        *((Cargo.SCALE, [wrong], "a scale is a power of 2 from") for wrong in (0.0, -2.0, 3.0, math.inf, math.nan)),
    ],
)
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_number_that_it_cannot_be_is_refused(cargo, numbers, says, precision):
    """An overflow and a skipped update are numbers in float16 alone, which alone has a scale."""
    if cargo is Cargo.SCALE and precision == "fp32":
        return
    if says == SCALED_ALONE:
        says = None if precision == "fp16" else "norms of gradients came|a coefficient is from 0 to 1"
    session = linked(precision=precision)
    crossing = next(
        one for one in session.plan.crossings if one.cargo is cargo and "edge" in (one.sender, one.receiver)
    )
    form = session.forms["edge"].of(crossing)
    sent = torch.tensor(numbers, dtype=torch.float64)
    encoded = {0: codec_by_name("raw").encode(sent)}
    if says is None:
        (arrived,) = form.decode(encoded)
        assert torch.equal(arrived, sent)
        return
    with pytest.raises(ProtocolError, match=says):
        form.decode(encoded)
