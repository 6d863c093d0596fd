"""Copies that a trainer trains for edges' calibrations: what is judged before a process is started, and the process itself."""

import functools
import json
import os
import subprocess
import sys

import pytest

from cloud_trainer.calibration.orders import order_of
from cloud_trainer.sessions.limits import Limits
from edge_agent.experiment.building import Experiment
from shared.errors import IsthmusError
from shared.version import PROTOCOL_VERSION
from shared.wire.isthmus.v1 import trainer_pb2 as pb
from shared.wire.isthmus.v1.tensor_pb2 import DataType, TensorHeader
from tests.support.running import ROOT, edge_config, trainer_config
from tests.support.sandbox import forbid_priorities

DIGITS = '{factory="edge_agent.data:digits", kwargs={split="%s"}}'
STAND_IN = [f"calibration.train={DIGITS % 'train'}", f"calibration.test={DIGITS % 'test'}"]
NETWORK = ["model.kwargs={width=8, blocks=2}"]


def test_a_process_that_may_not_change_its_priority_trains_all_the_same(tmp_path):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([forbid_priorities(tmp_path), str(ROOT)])}
    command = [sys.executable, "-P", "-m", "cloud_trainer.calibration.process"]
    order = order_of(copy_request(), trainer_config(*STAND_IN), Limits(2**30, 64, 2**30), "cpu")
    done = subprocess.run(
        command, input=order.model_dump_json(), env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["judged"]["samples"] == 360


@functools.cache
def recipe():
    return Experiment(edge_config(*NETWORK)).recipe


def copy_request():
    return pb.TrainCopyRequest(
        protocol_version=PROTOCOL_VERSION,
        model=pb.Model(factory="shared.model.zoo:residual_cnn", kwargs_json='{"width": 8, "blocks": 2}'),
        example=TensorHeader(shape=[32, 1, 8, 8], dtype=DataType.DATA_TYPE_FLOAT32),
        recipe_json=recipe().model_dump_json(),
        cut=2,
        codec="fp32",
        backward="replay",
        feedback="batch",
        epochs=0.1,
    )


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"epochs": float("nan")}, "nan epochs"),
        ({"epochs": -1.0}, "-1 epochs"),
        ({"epochs": 1e300}, "limit is 10"),
        ({"recipe_json": "[" * 100_000}, "characters"),
        ({"recipe_json": '{"seed": "x"}'}, "the copy"),
        ({"backward": "forward"}, "backward"),
        ({"feedback": "?"}, "the copy"),
        ({"codec": "x" * 1000}, "codec"),
        ({"cut": 0}, "cut"),
        ({"example": TensorHeader(shape=[2**40, 2**40], dtype=DataType.DATA_TYPE_FLOAT32)}, "example batch"),
        ({"example": TensorHeader(shape=[0, 1], dtype=DataType.DATA_TYPE_FLOAT32)}, "example batch"),
        ({"example": TensorHeader(shape=[1] * 100, dtype=DataType.DATA_TYPE_FLOAT32)}, "example batch"),
        ({"protocol_version": 99}, "protocol version 99"),
    ],
)
def test_no_process_is_started_for_a_claim_that_cannot_be(changes, says):
    request = copy_request()
    for field, value in changes.items():
        if field == "example":
            request.example.CopyFrom(value)
        else:
            setattr(request, field, value)
    with pytest.raises(IsthmusError, match=says):
        order_of(request, trainer_config(*STAND_IN), Limits(2**30, 64, 2**30), "cpu")
