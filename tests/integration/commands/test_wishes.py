"""Many operators at once: whatever they ask for in whatever order, the run does its steps, ends well, and computes the same."""

import json
import random
import signal
import threading
import time
from collections import Counter
from contextlib import contextmanager
from itertools import pairwise

import grpc
import pytest
from safetensors.torch import load_file

from edge_agent.control.service import SERVICE
from shared.errors import ExitCode
from shared.transport.rpc.contract import Stub
from shared.wire.isthmus.v1 import control_pb2 as pb
from tests.support.commands import MLP
from tests.support.plain import assert_same_bits, plain_state
from tests.support.running import agent_process, edge_config, run_agent, trainer_process

pytestmark = pytest.mark.usefixtures("one_thread")
TRAINING = [*MLP, "model.kwargs={depth=4}", "training.epochs=100000"]
NO_HURRY = [*TRAINING, "training.max_steps=1000000"]
CUT, LABELS_STAY, *_ = KINDS = (
    {"edge": [[0, 2]], "trainer": [[2, 4]]},
    {"edge": [[0, 1], [3, 4]], "trainer": [[1, 3]]},
    {"edge": [[0, 4]]},
    {"edge": [[0, 3]], "trainer": [[3, 4]]},
)
TRUTHFUL = {grpc.StatusCode.ABORTED, grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.UNAVAILABLE}


def document(ranges):
    tiles = [{"worker": worker, "blocks": bounds} for worker, runs in ranges.items() for bounds in runs]
    return json.dumps({"schema": "isthmus.placement/v1", "workers": ["edge", "trainer"], "tiles": tiles})


def place(service, ranges):
    return service.Place.future(pb.PlaceRequest(document_json=document(ranges)))


@contextmanager
def steered(tmp_path, settings, *arguments):
    """An agent process in training, what it says, and its control service."""
    target = f"unix:{tmp_path}/c.sock"
    kept = [f"checkpoints.location={tmp_path / 'edge'}", f"control.listen={target}", "compute.threads=1"]
    with (
        trainer_process("compute.threads=1", f"checkpoints.location={tmp_path / 'trainer'}") as (_, address),
        agent_process(*kept, *settings, f"trainer.address={address}", *arguments, output=tmp_path / "out") as (
            agent,
            said,
        ),
        grpc.insecure_channel(target) as channel,
    ):
        service = Stub(SERVICE, channel)
        said.first_event("controlled at")
        until_step(service, 3)
        yield agent, said, service, [*kept, f"trainer.address={address}"]


def until_step(service, step):
    for answer in service.Watch(pb.EdgeControlServiceWatchRequest(interval={"nanos": 50_000_000})):
        if answer.status.step >= step:
            return


def step_of(service):
    return service.GetStatus(pb.EdgeControlServiceGetStatusRequest()).status.step


@pytest.mark.parametrize("times", [15, pytest.param(100, marks=pytest.mark.full)])
def test_a_wish_that_is_taken_back_before_it_comes_into_force_leaves_the_run_going(tmp_path, times):
    dice = random.Random(1)
    with steered(tmp_path, NO_HURRY) as (agent, _said, service, _flags):
        for _ in range(times):
            wished = place(service, LABELS_STAY)
            time.sleep(dice.uniform(0.0, 0.02))  # any moment of a change
            taken_back = place(service, CUT)
            assert taken_back.exception() is None
            if (failure := wished.exception()) is not None:
                assert failure.code() is grpc.StatusCode.ABORTED
                assert "another placement" in failure.details()
        until_step(service, step_of(service) + 5)
        service.Drain(pb.EdgeControlServiceDrainRequest())
        assert agent.wait(60) == ExitCode.TERMINATED


@pytest.mark.slow
@pytest.mark.parametrize("times", [20, pytest.param(200, marks=pytest.mark.full)])
def test_wishes_that_never_cease_leave_every_placement_a_step_at_least(tmp_path, times):
    no_other_boundary = [*NO_HURRY, "checkpoints.every_seconds=3600"]
    with steered(tmp_path, no_other_boundary) as (agent, said, service, _flags):
        asked = [place(service, (CUT, LABELS_STAY)[number % 2]) for number in range(times // 4)]
        outcomes = Counter(one.code() for one in asked)
        assert outcomes.keys() <= {grpc.StatusCode.OK, grpc.StatusCode.ABORTED}
        for number in range(times):
            service.Place(pb.PlaceRequest(document_json=document((CUT, LABELS_STAY)[number % 2])), timeout=60)
        service.Drain(pb.EdgeControlServiceDrainRequest())
        assert agent.wait(60) == ExitCode.TERMINATED
        said.join()
        changes = [event for event in said.events() if event["event"] == "placement changed"]
    assert len(changes) >= times
    assert all(earlier["step"] < later["step"] for earlier, later in pairwise(changes))


class Hammer:
    """Operators who call at random until they are told to stop, and what they were answered."""

    THREADS = 4

    def __init__(self, service, seed):
        self._service, self._ended = service, threading.Event()
        self.in_force, self.refused = set(), Counter()
        self._threads = [
            threading.Thread(target=self._call, args=(random.Random(f"{seed} {one}"),)) for one in range(self.THREADS)
        ]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_failure):
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _call(self, dice):
        calls = [self._place] * 4 + [self._pin, self._release, self._pause_and_resume, self._checkpoint, self._look]
        while not self._ended.is_set():
            try:
                dice.choice(calls)(dice)
            except grpc.RpcError as refused:
                self.refused[refused.code()] += 1
            self._ended.wait(dice.uniform(0.0, 0.05))

    def _place(self, dice):
        request = pb.PlaceRequest(document_json=document(dice.choice(KINDS)))
        self.in_force.add(self._service.Place(request).version)

    def _pin(self, dice):
        self._service.Pin(pb.PinRequest(**dice.choice([{"cut": dice.randint(1, 4)}, {"staleness": 0}, {"bits": 32}])))

    def _release(self, _dice):
        self._service.Release(pb.ReleaseRequest())

    def _pause_and_resume(self, dice):
        self._service.Pause.future(pb.PauseRequest())
        self._ended.wait(dice.uniform(0.0, 0.05))
        self._service.Resume(pb.ResumeRequest())

    def _checkpoint(self, _dice):
        self._service.TakeCheckpoint(pb.TakeCheckpointRequest())

    def _look(self, _dice):
        step_of(self._service)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(3))
def test_whatever_operators_ask_for_the_run_ends_with_the_bits_of_one_process(tmp_path, seed):
    with steered(tmp_path, NO_HURRY) as (agent, said, service, flags):
        with Hammer(service, seed) as hammer:
            until_step(service, 200)
            if seed % 2:
                service.Drain(pb.EdgeControlServiceDrainRequest())
            else:
                agent.send_signal(signal.SIGTERM)
            assert agent.wait(60) == ExitCode.TERMINATED
        said.join()
        events = [*said.events()]
        versions = {0} | {event["version"] for event in events if event["event"] == "placement changed"}
        assert hammer.in_force <= versions
        dropped = hammer.refused.pop(grpc.StatusCode.CANCELLED, 0)
        assert dropped <= Hammer.THREADS, "gRPC drops calls that come while the server stops, and none before"
        assert hammer.refused.keys() <= TRUTHFUL
        assert hammer.in_force - {0}
        settings = [*TRAINING, f"training.max_steps={50 + max(event.get('step', 0) for event in events)}"]
        resumed = [f"--set={flag}" for flag in [*flags, *settings]]
        done = run_agent("run", "--resume", f"--output={tmp_path / 'out'}", *resumed)
        assert done.returncode == ExitCode.OK, done.stderr
    assert_same_bits(plain_state(edge_config(*settings)), load_file(tmp_path / "out" / "model.safetensors"))
