"""A start waits for its trainer in every call: one killed while a session opens is waited for, and the run is as any."""

import asyncio

import grpc
import pytest
from safetensors.torch import load_file, save_file

from cloud_trainer.server import TrainerServer
from isthmus import run_training
from shared.errors import ExitCode, UnreachableError
from shared.wire.isthmus.v1 import trainer_pb2 as pb
from tests.chaos.faults import Fault, Planned
from tests.support.killed_chain import CHOSEN, Chain
from tests.support.peers.trainers import FLAGS, trainer_with
from tests.support.plain import assert_same_bits, plain_state
from tests.support.running import edge_config, trainer_config

pytestmark = pytest.mark.usefixtures("one_thread")
STEPS = "training.max_steps=20"
CALLS = {
    "OpenSession": "cloud_trainer.rpc.service:TrainerService.open_session",
    "UploadBlock": "cloud_trainer.rpc.service:TrainerService.upload_block",
    "CheckPeers": "cloud_trainer.rpc.session_calls:SessionCalls.check_peers",
    "JoinSession": "cloud_trainer.sessions.joining:Joining.join_session",
    "DialPeers": "cloud_trainer.rpc.session_calls:SessionCalls.dial_peers",
    "Link": "cloud_trainer.rpc.link_rpc:LinkRpc.link",
}
"""Calls of a start to the first of two trainers, in this order."""


@pytest.mark.first_case
@pytest.mark.parametrize("call", CALLS)
def test_a_trainer_killed_in_any_call_of_a_start_is_waited_for(call, tmp_path):
    chosen, own_weights = [*CHOSEN, STEPS], tmp_path / "first.safetensors"
    save_file(plain_state(edge_config(*chosen)), own_weights)
    with Chain(tmp_path, None, {"edge": "0:1", "near": "1:2", "far": "2:"}, replicas=0) as chain:
        chain.kill("near")
        chain.start("near", Planned("trainer", Fault.KILL_TRAINER, CALLS[call], 1))
        # Blocks are uploaded where the trainer begins with others.
        process, said = chain.agent(STEPS, *([f'training.start_from="{own_weights}"'] if call == "UploadBlock" else []))
        chain.wait_until_dead("near")
        chain.start("near")
        assert process.wait(240) == ExitCode.OK, said
        trained = load_file(chain.output / "model.safetensors")
        if call != "UploadBlock":
            assert_same_bits(plain_state(edge_config(*chosen)), trained)


def refusing(real, request_type, times):
    """The real method, after so many refusals of a trainer that cannot be reached."""
    left = [None] * times

    async def call(request, context):
        if left:
            left.pop()
            await context.abort(grpc.StatusCode.UNAVAILABLE, "away")
        return await real(request, context)

    return grpc.unary_unary_rpc_method_handler(
        call,
        request_deserializer=request_type.FromString,
        response_serializer=lambda answer: answer.SerializeToString(),
    )


@pytest.mark.parametrize("method", ["OpenSession", "Probe"])
@pytest.mark.parametrize("ends", [False, True])
async def test_a_trainer_that_is_away_as_a_run_starts_is_waited_for_so_long(method, ends):
    real = TrainerServer(trainer_config())
    answers = {"OpenSession": real.service.open_session, "Probe": real.service.probe}
    handler = refusing(answers[method], getattr(pb, f"{method}Request"), 1_000_000 if ends else 3)
    async with trainer_with(method, handler, real) as address, asyncio.timeout(200):
        several = {"a": address} | (
            {"b": "127.0.0.1:1"} if method == "Probe" else {}
        )  # one alone is asked for no probe
        seconds = 0.5 if ends else 60
        named = ", ".join(
            f'{{name="{name}", address="{at}", connect_timeout_seconds={seconds}}}' for name, at in several.items()
        )
        config = edge_config(*FLAGS[:-1], f"trainers=[{named}]")
        if ends:
            with pytest.raises(UnreachableError, match="away"):
                await run_training(config)
        else:
            assert (await run_training(config)).summary.steps == 3
