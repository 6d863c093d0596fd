"""The view of a stranger with grpcurl: the services by reflection, health as it is, and errors in a sentence.

`buf curl` stands for grpcurl, which no package index has.
"""

import asyncio
import json

import grpc
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto, ServiceDescriptorProto
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from cloud_trainer.server import TrainerServer
from shared.transport.rpc.health import serving
from shared.wire.isthmus.v1 import trainer_pb2 as pb
from tests.support.peers.curl import curl
from tests.support.running import held_port, trainer_config, trainer_process
from tests.support.wire import SERVICE

State = health_pb2.HealthCheckResponse


@pytest.fixture(scope="module")
def address():
    with trainer_process("compute.threads=1") as (_, address):
        yield address


def test_reflection_lists_every_service(address):
    code, out, err = curl(address, "--list-services")
    assert code == 0, err
    assert {SERVICE, "grpc.health.v1.Health"} <= set(out.split())


def test_reflection_lists_every_method_of_the_contract(address):
    code, out, err = curl(address, "--list-methods")
    assert code == 0, err
    contract = {f"{SERVICE}/{method.name}" for method in pb.DESCRIPTOR.services_by_name["TrainerService"].methods}
    assert contract <= set(out.split())


@pytest.mark.parametrize(
    ("service", "begins"),
    [
        (SERVICE, "The cloud's side of a training run."),
        ("isthmus.v1.TrainerControlService", "Watches and steers a trainer"),
    ],
)
async def test_reflection_brings_the_comments_of_every_call(address, service, begins):
    async with grpc.aio.insecure_channel(address) as channel:
        call = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo()
        await call.write(reflection_pb2.ServerReflectionRequest(file_containing_symbol=service))
        answer = await call.read()
        call.cancel()
    files = map(FileDescriptorProto.FromString, answer.file_descriptor_response.file_descriptor_proto)
    (file,) = [file for file in files if service.rpartition(".")[2] in [described.name for described in file.service]]
    comments = {tuple(place.path): place.leading_comments.strip() for place in file.source_code_info.location}
    index, described = next((i, each) for i, each in enumerate(file.service) if service.endswith(f".{each.name}"))
    services, methods = FileDescriptorProto.SERVICE_FIELD_NUMBER, ServiceDescriptorProto.METHOD_FIELD_NUMBER
    assert comments[services, index].startswith(begins)
    assert all(comments[services, index, methods, number] for number in range(len(described.method)))


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
    assert refusal["message"].startswith("there is no session 'nobody'; it was closed")


def test_a_right_call_is_answered(address):
    code, out, err = curl(address, method=f"{SERVICE}/CloseSession", data={"sessionId": "nobody"})
    assert (code, json.loads(out)) == (0, {}), err


async def test_health_is_not_serving_while_the_trainer_stops():
    server = TrainerServer(trainer_config())
    await server.start()
    async with grpc.aio.insecure_channel(server.address) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service=SERVICE))
        async with asyncio.timeout(60):
            assert (await watch.read()).status == State.SERVING
            stopping = asyncio.create_task(server.stop())
            assert (await watch.read()).status == State.NOT_SERVING
            assert not stopping.done(), "it says so first, and lets calls that are there end"
            watch.cancel()
            await stopping


async def test_the_probe_of_containers_believes_what_health_says():
    server = TrainerServer(trainer_config())
    await server.start()
    assert await asyncio.to_thread(serving, server.address)
    async with grpc.aio.insecure_channel(server.address) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service=SERVICE))
        await watch.read()  # a call that is under way, so that stopping takes its time
        stopping = asyncio.create_task(server.stop())
        await watch.read()
        assert not await asyncio.to_thread(serving, server.address), "it says that it stops"
        watch.cancel()
        await stopping
    with held_port() as port:
        assert not await asyncio.to_thread(serving, f"127.0.0.1:{port}"), "nobody is there"
