"""Models that a user may bring: what the two sides make of them together, and what never leaves the edge."""

import asyncio
from functools import partial

import grpc
import pytest
import torch
from safetensors.torch import save_file
from structlog.testing import capture_logs

from edge_agent.sessions.opening import open_session
from isthmus import run_training
from shared.client.trainer import TrainerClient
from shared.errors import ConfigError, ExitCode, ModelError, RefusedError
from shared.factory import load_factory
from shared.model.build import build_checked_chain
from shared.model.zoo import mlp
from shared.wire.isthmus.v1 import trainer_pb2 as pb
from shared.wire.isthmus.v1.tensor_pb2 import DataType, TensorHeader
from tests.support.commands import agent_fails
from tests.support.plain import assert_same_bits, plain_state
from tests.support.running import Listening, cut_at, edge_config, running_trainer, train_with
from tests.support.wire import RawPeer, open_request, placed

pytestmark = pytest.mark.usefixtures("one_thread")

FLAT_DIGITS = 'data.train={factory="tests.support.samples:FlatDigits"}'
SEQUENCES = [
    'model.factory="shared.model.zoo:bilstm"',
    "model.kwargs={vocabulary=50, embedding=8, hidden=8}",
    'data.train={factory="tests.support.samples:Sequences"}',
    "training.max_steps=3",
]
PERMITTED = 'privacy.inputs_to=["trainer"]'


@pytest.mark.parametrize("limit", [0, 2])
async def test_blocks_before_a_detach_stay_as_they_are_with_one_warning(limit):
    chosen = [
        'model.factory="tests.support.models.detached:detached"',
        FLAT_DIGITS,
        "training.max_steps=6",
        "deployment.cut=1",
        f"deployment.staleness={limit}",
    ]
    with capture_logs() as logs:
        async with running_trainer() as server:
            result = await train_with(server, *chosen)
    assert result.summary.steps == 6
    assert_same_bits(plain_state(edge_config(*chosen)), result.module.state_dict())
    warnings = [entry for entry in logs if entry["log_level"] == "warning" and "gradient" in entry["event"]]
    assert [(entry["event"], entry["worker"]) for entry in warnings] == [
        ("blocks pass no gradient on in some steps, in which the blocks before them do not learn", "trainer")
    ]


async def test_a_run_names_at_its_start_the_buffers_that_its_file_will_lack():
    chosen = ['model.factory="tests.support.models.remembering:remembering"', FLAT_DIGITS, "training.max_steps=2"]
    with capture_logs() as logs:
        async with running_trainer() as server:
            await train_with(server, *chosen)
    named = [entry["buffers"] for entry in logs if "model.safetensors will not hold" in entry["event"]]
    assert named == [["1.mean", "1.seen", "2.mean", "2.seen"]]


@pytest.mark.slow
@pytest.mark.parametrize("activation", ["nn.GELU()", pytest.param("nn.Identity()", marks=pytest.mark.slow)])
async def test_a_trainer_whose_model_computes_something_else_refuses(tmp_path, monkeypatch, activation):
    """Both sides import a module of the same name, each from a folder of its own."""
    name = f"models_of_{activation[3:-2].lower()}"
    for side, middle in (("edge", "nn.ReLU()"), ("trainer", activation)):
        (tmp_path / side).mkdir()
        (tmp_path / side / f"{name}.py").write_text(
            "from torch import nn\n"
            f"def make(): return nn.Sequential(nn.Linear(64, 8), nn.Sequential(nn.Linear(8, 8), {middle}), nn.Linear(8, 10))\n"
        )
    monkeypatch.syspath_prepend(tmp_path / "trainer")
    async with running_trainer(f'models.allowed=["{name}:make"]') as server:
        said = await asyncio.to_thread(
            agent_fails,
            ExitCode.PROTOCOL,
            f"block '1' of '{name}:make' computes something else on the trainer than on the edge",
            flags=[f'model.factory="{name}:make"'],
            trainer=server.address,
            environ={"PYTHONPATH": str(tmp_path / "edge")},
        )
        assert "session opened" not in said


@pytest.mark.slow
async def test_a_trainer_that_has_imported_what_a_file_was_before_says_so(tmp_path, monkeypatch):
    text = "from torch import nn\ndef make(): return nn.Sequential(nn.Linear(64, 8), {}, nn.Linear(8, 10))\n"
    name = f"models_{tmp_path.name}"
    file = tmp_path / f"{name}.py"
    file.write_text(text.format("nn.ReLU()"))
    monkeypatch.syspath_prepend(tmp_path)
    load_factory(f"{name}:make")
    file.write_text(text.format("nn.LeakyReLU()"))
    says = ("computes something else", f"the trainer has imported {name}.py of 20", "; restart the trainer")
    with capture_logs() as logs:
        async with running_trainer(f'models.allowed=["{name}:make"]') as server:
            flags, environ = [f'model.factory="{name}:make"'], {"PYTHONPATH": str(tmp_path)}
            refused = partial(
                agent_fails, ExitCode.PROTOCOL, *says, flags=flags, trainer=server.address, environ=environ
            )
            await asyncio.to_thread(refused)
    assert {line["file"] for line in logs if "file has changed" in line["event"]} >= {str(file)}


@pytest.mark.slow
async def test_a_cut_behind_a_lookup_is_refused_on_both_sides_until_both_permit_it():
    cut = ["deployment.cut=1"]
    with pytest.raises(ModelError, match=r"cut 1 would send raw samples: behind block 'embedding' 100% of a sample"):
        await run_training(edge_config(*SEQUENCES, *cut))
    async with running_trainer() as server:
        with pytest.raises(Exception, match=r"raw samples would go from 'edge' to 'trainer'.*server.accept_inputs"):
            await train_with(server, *SEQUENCES, *cut, PERMITTED)
        assert (await train_with(server, *SEQUENCES)).summary.edge_blocks == 2, "the default avoids it"
    async with running_trainer("server.accept_inputs=true") as server:
        with pytest.raises(ModelError, match="cut 1 would send raw samples"):
            await train_with(server, *SEQUENCES, *cut)
        assert (await train_with(server, *SEQUENCES, *cut, PERMITTED)).summary.edge_blocks == 1


@pytest.mark.first_case
@pytest.mark.parametrize("model", ["flattened", "normalised"])
async def test_a_cut_behind_which_samples_can_be_read_off_is_refused_on_both_sides_until_both_permit_it(model):
    chosen = [f'model.factory="tests.support.models.reading:{model}"', FLAT_DIGITS, "training.max_steps=3"]
    cut = "deployment.cut=1"
    async with running_trainer() as server:
        with pytest.raises(ModelError, match=r"cut 1 would send raw samples: .*; cut at 2 or later, or permit it with"):
            await train_with(server, *chosen, cut)
        with pytest.raises(
            ConfigError, match=r"from 'edge' to 'trainer': .*; leave the first 2 blocks .* privacy.inputs_to"
        ):
            await train_with(server, *chosen, 'placement.edge="0:1"', 'placement.trainer="1:"')
        with pytest.raises(RefusedError, match=r"raw samples would go from 'edge' to 'trainer'.*server.accept_inputs"):
            await train_with(server, *chosen, cut, PERMITTED)
        assert (await train_with(server, *chosen)).summary.edge_blocks == 2, "the default avoids it"
    async with running_trainer("server.accept_inputs=true") as server:
        assert (await train_with(server, *chosen, cut, PERMITTED)).summary.edge_blocks == 1


async def test_a_move_behind_a_lookup_is_refused_on_both_sides():
    asked = []

    def on_progress(progress):
        if progress.steps == 1:
            with pytest.raises(ModelError, match="cut 1 would send raw samples"):
                cut_at(asked[0], 1)
            asked.append("refused")

    async with running_trainer() as server:
        config = edge_config(*SEQUENCES, f"trainer.address={server.address}")
        assert (await run_training(config, Listening(on_progress, asked.append))).summary.edge_blocks == 2
        assert asked[1:] == ["refused"]
        async with RawPeer(server.address) as peer:
            chain = build_checked_chain("shared.model.zoo:bilstm", {}, 0, torch.ones(8, 12, dtype=torch.int64))

            def at(cut, version):
                parts = (("edge", [0, cut]), ("trainer", [cut, len(chain.blocks)]))
                tiles = [{"worker": worker, "blocks": blocks} for worker, blocks in parts]
                return placed(version=version, tiles=tiles)

            session = await peer.open(
                model=pb.Model(factory="shared.model.zoo:bilstm", kwargs_json="{}"),
                inputs=[TensorHeader(shape=[8, 12], dtype=DataType.DATA_TYPE_INT64)],
                block_names=[block.name for block in chain.blocks],
                placement=at(2, 0),
            )
            await peer.join(session)
            request = pb.CommitPlacementRequest(session_id=session, fence=pb.Fence(session_term=1), placement=at(1, 1))
            end = await peer.unary("CommitPlacement", request.SerializeToString())
            assert end.code is grpc.StatusCode.INVALID_ARGUMENT
            assert "raw samples would go from 'edge' to 'trainer'" in end.details


async def test_frozen_blocks_of_the_edge_stay_there_until_a_move_gives_them_away(monkeypatch, tmp_path):
    """The edge's weights are its own, drawn from another seed than the trainer's, as weights from a file would be."""
    (tmp_path / "own_weights.py").write_text(
        "import torch\n"
        "from shared.model.zoo import mlp\n"
        "import itertools\nsides = itertools.count()\n"
        "def make():\n"
        "    torch.manual_seed(next(sides))\n"
        "    return mlp(depth=4)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    sent, deployers = [], []
    upload = TrainerClient.upload_block

    async def recorded(self, session_id, tensor, *others):
        sent.append(tensor.key.block)
        return await upload(self, session_id, tensor, *others)

    def on_progress(progress):
        moves = {4: 1, 40: 3, 80: 1}
        if progress.steps == 3:
            assert sent == [2, 3], "the blocks of the cloud alone"
        if progress.steps in moves:
            cut_at(deployers[0], moves[progress.steps])

    monkeypatch.setattr(TrainerClient, "upload_block", recorded)
    async with running_trainer('models.allowed=["own_weights"]') as server:
        config = edge_config(
            'model.factory="own_weights:make"',
            FLAT_DIGITS,
            'model.frozen=["0", "1"]',
            "deployment.cut=2",
            "training.max_steps=120",
            f"trainer.address={server.address}",
        )
        await run_training(config, Listening(on_progress, deployers.append))
    assert sent == [2, 3, 1, 2], "block 1 went once, with the first move; block 0 never; block 2 came back changed"


async def test_behaviours_that_cannot_be_are_refused(trainer):
    few, empty, other = (
        [pb.BlockBehaviour(numbers=[1.0])],
        [pb.BlockBehaviour()] * 3,
        [pb.BlockBehaviour(numbers=[1.0])] * 3,
    )
    async with RawPeer(trainer) as peer:
        for behaviours, code in ((few, "INVALID_ARGUMENT"), (other, "FAILED_PRECONDITION"), (empty, "OK")):
            request = open_request(block_behaviours=behaviours)
            end = await peer.unary("OpenSession", request.SerializeToString())
            assert end.code.name == code, end
        await peer.close_session(pb.OpenSessionResponse.FromString(end.responses[0]).session_id)


WIDE = [
    'model.factory="tests.support.models.wide:wide"',
    'data.train={factory="tests.support.models.wide:WideDigits"}',
    "deployment.cut=1",
]


@pytest.mark.parametrize("key", ["codec", "downlink_codec"])
async def test_float64_is_not_narrowed_in_silence(key):
    other = "downlink_codec" if key == "codec" else "codec"
    chosen = [*WIDE, f"deployment.{other}=raw", f"deployment.{key}=fp32"]
    with pytest.raises(
        ConfigError, match=rf"deployment\.{key} is fp32, which would narrow the float64 features .* set it to raw"
    ):
        await run_training(edge_config(*chosen))


async def test_raw_carries_float64_bit_for_bit():
    chosen = [*WIDE, "deployment.codec=raw", "deployment.downlink_codec=raw", "training.max_steps=8"]
    async with running_trainer() as server:
        result = await train_with(server, *chosen)
    assert_same_bits(plain_state(edge_config(*chosen)), result.module.state_dict())


async def test_weights_that_only_the_edge_has_are_brought(tmp_path, monkeypatch):
    """The factory loads a file where the file is, which is on the edge: its trainer runs the same factory without it."""
    weights = tmp_path / "weights.pt"
    (tmp_path / "loads_weights.py").write_text(
        "from pathlib import Path\n"
        "from safetensors.torch import load_file\n"
        "from shared.model.zoo import mlp\n"
        "def make(needed=False):\n"
        "    net = mlp()\n"
        f"    if needed or Path({str(weights)!r}).exists():\n"
        f"        net.load_state_dict(load_file({str(weights)!r}))\n"
        "    return net\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    chosen = ['model.factory="loads_weights:make"', FLAT_DIGITS, "deployment.cut=1", "training.max_steps=5"]
    there = {name: value + 1.0 for name, value in mlp().state_dict().items()}
    opened = open_session

    async def open_without_the_file(*arguments):
        weights.rename(tmp_path / "elsewhere")
        try:
            return await opened(*arguments)
        finally:
            (tmp_path / "elsewhere").rename(weights)

    save_file(there, weights)
    expected = plain_state(edge_config(*chosen))
    async with running_trainer('models.allowed=["loads_weights"]') as server:
        monkeypatch.setattr("edge_agent.sessions.opening.open_session", open_without_the_file)
        result = await train_with(server, *chosen)
        assert_same_bits(expected, result.module.state_dict())
        with pytest.raises(RefusedError, match=r"failed with FileNotFoundError.*both sides run the factory"):
            await train_with(server, *chosen, "model.kwargs={needed=true}")


async def test_a_compiled_model_trains_as_the_one_inside_under_its_names():
    chosen = [
        'model.factory="tests.support.models.exported:compiled"',
        'data.train={factory="tests.support.samples:FlatDigits"}',
        "training.max_steps=8",
        "deployment.cut=2",
    ]
    async with running_trainer() as server:
        state = (await train_with(server, *chosen)).module.state_dict()
    assert not [name for name in state if "_orig_mod" in name]
    assert_same_bits(plain_state(edge_config(*chosen)), state)
