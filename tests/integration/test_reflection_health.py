"""What a stranger with grpcurl sees: the services by reflection, health as it is, and errors in a sentence.

`buf curl` stands for grpcurl, which no package index has.
"""

import asyncio
import json
import subprocess

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from cloud_trainer import TrainerServer
from shared.wire.isthmus.v1 import trainer_pb2 as pb
from tests.support.running import SCRIPTS, trainer_config, trainer_process
from tests.support.wire import SERVICE

State = health_pb2.HealthCheckResponse


@pytest.fixture(scope="module")
def address():
    with trainer_process("compute.threads=1") as (_, address):
        yield address


def curl(address, *arguments, method="", data=None):
    """A call of buf's, with no file of ours at hand: exit code, standard output, standard error."""
    command = [SCRIPTS / "buf", "curl", "--protocol", "grpc", "--http2-prior-knowledge", *arguments]
    if data is not None:
        command += ["-d", json.dumps(data)]
    done = subprocess.run(
        [*command, f"http://{address}/{method}"], capture_output=True, text=True, timeout=60, check=False
    )
    return done.returncode, done.stdout, done.stderr


def test_reflection_lists_every_service(address):
    code, out, err = curl(address, "--list-services")
    assert code == 0, err
    assert {SERVICE, "grpc.health.v1.Health"} <= set(out.split())


def test_reflection_lists_every_method_of_the_contract(address):
    code, out, err = curl(address, "--list-methods")
    assert code == 0, err
    contract = {f"{SERVICE}/{method.name}" for method in pb.DESCRIPTOR.services_by_name["TrainerService"].methods}
    assert contract <= set(out.split())


@pytest.mark.parametrize("service", ["", SERVICE])
def test_health_is_serving(address, service):
    code, out, err = curl(address, method="grpc.health.v1.Health/Check", data={"service": service})
    assert code == 0, err
    assert json.loads(out) == {"status": "SERVING"}


def test_the_health_of_a_service_that_is_not_there_is_unknown(address):
    code, _, err = curl(address, method="grpc.health.v1.Health/Check", data={"service": "isthmus.v1.Nothing"})
    assert code != 0
    assert json.loads(err)["code"] == "not_found"


def test_a_call_is_refused_with_a_status_and_a_sentence(address):
    code, out, err = curl(address, method=f"{SERVICE}/GetSession", data={"sessionId": "nobody"})
    assert code != 0
    assert out == ""
    refusal = json.loads(err)
    assert refusal["code"] == "not_found"
    assert refusal["message"] == "there is no session 'nobody'; it was closed or never opened"


def test_a_right_call_is_answered(address):
    code, out, err = curl(address, method=f"{SERVICE}/CloseSession", data={"sessionId": "nobody"})
    assert (code, json.loads(out)) == (0, {}), err


async def test_health_is_not_serving_while_the_trainer_stops():
    server = TrainerServer(trainer_config())
    await server.start()
    async with grpc.aio.insecure_channel(server.address) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service=SERVICE))
        async with asyncio.timeout(30):
            assert (await watch.read()).status == State.SERVING
            stopping = asyncio.create_task(server.stop())
            assert (await watch.read()).status == State.NOT_SERVING
            assert not stopping.done(), "it says so first, and lets calls that are there end"
            watch.cancel()
            await stopping
