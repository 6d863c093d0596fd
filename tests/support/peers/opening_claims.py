"""Worst claims of a peer that opens a session: a table to which every field of an opening with a size belongs."""

import json
from collections.abc import Callable
from typing import Any

from shared.wire.isthmus.v1 import trainer_pb2 as pb
from shared.wire.isthmus.v1.tensor_pb2 import DataType, TensorHeader
from tests.support.peers.claim import LARGEST, MOST_MESSAGE_BYTES, Claim
from tests.support.wire import BLOCKS, FEATURES, open_request, placed

LONG = pb.Placement(document_json=" " * MOST_MESSAGE_BYTES)
NESTED = pb.Placement(document_json="[" * 60_000)
OF_MANY = placed(workers=[str(number) for number in range(5000)])
IN_PIECES = placed(tiles=[{"worker": "edge", "blocks": [0, BLOCKS], "samples": [0, 1]}] * 700)


def _opening(**changes: Any) -> Callable[[str], list[bytes]]:
    return lambda _session: [open_request(**changes).SerializeToString()]


def _model(factory: str = "shared.model.zoo:mlp", **kwargs: Any) -> pb.Model:
    return pb.Model(factory=factory, kwargs_json=json.dumps(kwargs))


def recipe_but(**changes: Any) -> str:
    """Return the recipe of a right opening, but for `changes`."""
    return json.dumps(json.loads(open_request().recipe_json) | changes)


OPENINGS = [
    Claim("OpenSession", "a model of too many layers", _opening(model=_model(depth=10**10))),
    Claim("OpenSession", "a model too wide", _opening(model=_model(hidden=10**9))),
    Claim("OpenSession", "many layers, each too wide", _opening(model=_model(hidden=10**5, depth=64))),
    Claim("OpenSession", "arguments as long as a message", _opening(model=_model(inputs="9" * MOST_MESSAGE_BYTES))),
    Claim(
        "OpenSession",
        "a number as long as may be",
        _opening(model=pb.Model(factory="shared.model.zoo:mlp", kwargs_json='{"inputs": ' + "9" * 60_000 + "}")),
    ),
    Claim(
        "OpenSession",
        "arguments in many brackets",
        _opening(model=pb.Model(factory="shared.model.zoo:mlp", kwargs_json="[" * 60_000)),
    ),
    Claim(
        "OpenSession", "a factory's name as long as a message", _opening(model=_model("a." * (MOST_MESSAGE_BYTES // 2)))
    ),
    Claim(
        "OpenSession", "a recipe as long as a message", _opening(recipe_json=recipe_but(loss="x" * MOST_MESSAGE_BYTES))
    ),
    Claim(
        "OpenSession",
        "a loss with ten thousand weights",
        _opening(recipe_json=recipe_but(loss={"name": "cross_entropy", "kwargs": {"weight": [1.0] * 10_000}})),
    ),
    Claim(
        "OpenSession",
        "a schedule that nobody has allowed",
        _opening(recipe_json=recipe_but(schedule={"name": "os:getpid"})),
    ),
    Claim(
        "OpenSession",
        "an optimizer that nobody has allowed",
        _opening(
            recipe_json=recipe_but(
                optimizer={"name": "subprocess:Popen", "learning_rate": 0.1, "kwargs": {"args": "true"}}
            )
        ),
    ),
    Claim("OpenSession", "names of a million blocks", _opening(block_names=["block"] * 1_000_000)),
    Claim(
        "OpenSession",
        "an example of exabytes",
        _opening(inputs=[TensorHeader(shape=[LARGEST, LARGEST], dtype=DataType.DATA_TYPE_FLOAT64)]),
    ),
    Claim(
        "OpenSession",
        "an example of many dimensions",
        _opening(inputs=[TensorHeader(shape=[1] * 1_000_000, dtype=DataType.DATA_TYPE_FLOAT32)]),
    ),
    Claim(
        "OpenSession",
        "an example as large as may be",
        _opening(inputs=[TensorHeader(shape=[2**22, FEATURES + 1], dtype=DataType.DATA_TYPE_FLOAT32)]),
    ),
    Claim("OpenSession", "the largest K", _opening(staleness=LARGEST)),
    Claim("OpenSession", "the last cut", _opening(cut=LARGEST)),
    Claim("OpenSession", "a placement as long as a message", _opening(placement=LONG)),
    Claim("OpenSession", "a placement in many brackets", _opening(placement=NESTED)),
    Claim("OpenSession", "a placement of many workers", _opening(placement=OF_MANY)),
    Claim("OpenSession", "a placement of many tiles", _opening(placement=IN_PIECES)),
]
"""Every one is refused."""
