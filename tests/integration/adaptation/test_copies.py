"""Copies that a trainer trains for edges' calibrations: what is judged before a process is started, and the process itself."""

import asyncio
import functools
import json
import os
import subprocess
import sys
from typing import cast

import pytest

from cloud_trainer.calibration.copy_trainings import BEGINS
from cloud_trainer.calibration.orders import order_of
from cloud_trainer.sessions.limits import Limits
from edge_agent.experiment.experiment import Experiment
from edge_agent.profiling.calibration import Lossiness
from edge_agent.profiling.calibration_copies import TrainerCopies
from shared.client.trainer import TrainerClient
from shared.errors import IsthmusError
from shared.version import PROTOCOL_VERSION
from shared.wire.isthmus.v1 import trainer_pb2 as pb
from shared.wire.isthmus.v1.tensor_pb2 import DataType, TensorHeader
from tests.support.running import ROOT, edge_config, trainer_config
from tests.support.sandbox import forbid_priorities

DIGITS = '{factory="edge_agent.data:digits", kwargs={split="%s"}}'
STAND_IN = [f"calibration.train={DIGITS % 'train'}", f"calibration.test={DIGITS % 'test'}"]
NETWORK = ["model.kwargs={width=8, blocks=2}"]


@pytest.mark.slow
def test_a_process_that_may_not_change_its_priority_trains_all_the_same(tmp_path):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([forbid_priorities(tmp_path), str(ROOT)])}
    command = [sys.executable, "-P", "-c", BEGINS]
    order = order_of(copy_request(), trainer_config(*STAND_IN), Limits(2**30, 64, 2**30), "cpu")
    done = subprocess.run(
        command, input=order.model_dump_json(), env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["judged"]["figures"].keys() == {"loss", "accuracy"}


def report_of(request, *stand_in):
    """The last report of the process that trains the copy of a request."""
    order = order_of(request, trainer_config(*stand_in), Limits(2**30, 64, 2**30), "cpu")
    command = [sys.executable, "-P", "-c", BEGINS]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, input=order.model_dump_json(), env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def sentences(factory, length=12, test_samples=40):
    name = f"tests.support.samples:{factory}"
    return [
        f'calibration.train={{factory="{name}", kwargs={{length={length}}}}}',
        f'calibration.test={{factory="{name}", kwargs={{samples={test_samples}, length={length}}}}}',
    ]


@functools.cache
def named_request():
    """The request of an agent whose inputs have names."""
    experiment = Experiment(
        edge_config(
            'model.factory="tests.support.models.several:NamedEncoder"',
            "model.kwargs={vocabulary=50, classes=4}",
            'data.train={factory="tests.support.samples:Masked"}',
        )
    )
    sent = []

    class Client:
        async def train_copy(self, request):
            sent.append(request)
            return pb.CopyJudged(figures={"accuracy": 1.0})

    copies = TrainerCopies(experiment, cast(TrainerClient, Client()))
    asyncio.run(copies.train(Lossiness(cut=1, staleness=2, bits=8), 0, 0.5, 1.0))
    return sent[0]


@pytest.mark.slow
def test_inputs_with_names_are_those_of_the_operators_samples():
    assert report_of(named_request(), *sentences("Masked"))["judged"]["figures"].keys() == {"loss", "accuracy"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stand_in", "says"),
    [
        (sentences("Masked", length=9), "has samples attention_mask bool (9,)"),
        (sentences("Sequences"), "has samples int64 (12,), the edge's are attention_mask"),
    ],
)
def test_samples_of_other_inputs_are_refused(stand_in, says):
    refused = report_of(named_request(), *stand_in)["refused"]
    assert says in refused["sentence"]


@functools.cache
def recipe():
    return Experiment(edge_config(*NETWORK)).recipe


def copy_request():
    return pb.TrainCopyRequest(
        protocol_version=PROTOCOL_VERSION,
        model=pb.Model(factory="shared.model.zoo:residual_cnn", kwargs_json='{"width": 8, "blocks": 2}'),
        inputs=[TensorHeader(shape=[32, 1, 8, 8], dtype=DataType.DATA_TYPE_FLOAT32)],
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
        ({"inputs": [TensorHeader(shape=[2**40, 2**40], dtype=DataType.DATA_TYPE_FLOAT32)]}, "example batch"),
        ({"inputs": [TensorHeader(shape=[0, 1], dtype=DataType.DATA_TYPE_FLOAT32)]}, "example batch"),
        ({"inputs": [TensorHeader(shape=[1] * 100, dtype=DataType.DATA_TYPE_FLOAT32)]}, "example batch"),
        ({"inputs": []}, "the batch has 0 inputs"),
        ({"input_names": ["x", "y"]}, "2 names of 1 inputs"),
        ({"protocol_version": 99}, "protocol version 99"),
    ],
)
def test_no_process_is_started_for_a_claim_that_cannot_be(changes, says):
    request = copy_request()
    for field, value in changes.items():
        if isinstance(value, list):
            request.ClearField(field)
            getattr(request, field).extend(value)
        else:
            setattr(request, field, value)
    with pytest.raises(IsthmusError, match=says):
        order_of(request, trainer_config(*STAND_IN), Limits(2**30, 64, 2**30), "cpu")
