"""Parameters that do not learn are compared once; then they are neither moved, nor stored, nor changed."""

from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from edge_agent.experiment.experiment import Experiment
from edge_agent.sessions.resuming import Resume
from edge_agent.training.shutdown import Shutdown
from isthmus import run_training
from shared.client.trainer import TrainerClient
from shared.errors import ProtocolError, StoppedError
from shared.model.build import build_model
from shared.training import block_state
from shared.wire.isthmus.v1.tensor_pb2 import Role
from tests.support.models.adapted import LEARNS, adapted
from tests.support.plain import assert_same_bits, plain_state
from tests.support.running import Listening, cut_at, edge_config, running_trainer

pytestmark = pytest.mark.usefixtures("one_thread")
ADAPTED = "tests.support.models.adapted:adapted"
CHOSEN = [
    f'model.factory="{ADAPTED}"',
    LEARNS,
    'data.train={factory="tests.support.samples:FlatDigits"}',
    'training.optimizer={name="adamw", learning_rate=0.003}',
    "training.max_steps=30",
    "training.epochs=1",
    "training.evaluate_every_epochs=0",
    "deployment.cut=1",
]
BLOCKS = 4


@pytest.fixture
def traffic(monkeypatch):
    """Note every block that travels to a trainer or from one: its index, its bytes, and whether it is frozen."""
    seen, upload, download = [], TrainerClient.upload_block, TrainerClient.download_block

    async def uploaded(self, session_id, tensor, *others):
        seen.append((tensor.key.block, tensor.payload.nbytes, tensor.key.role == Role.ROLE_FROZEN))
        return await upload(self, session_id, tensor, *others)

    async def downloaded(self, session_id, block, *others, **keywords):
        data = await download(self, session_id, block, *others, **keywords)
        seen.append((block, len(data), False))
        return data

    monkeypatch.setattr(TrainerClient, "upload_block", uploaded)
    monkeypatch.setattr(TrainerClient, "download_block", downloaded)
    return seen


async def train(moves, *flags, stop_at=None, resume=None):
    """Train, with the cut moved when a step is done; stop there if it says so."""
    deployers, stop, left, wanted = [], Shutdown(), sorted(moves), []

    def on_progress(progress):
        # One that is not in force yet would be dropped for the next.
        is_in_force = wanted[-1:] in ([], [deployers[0].deployment_in_force.edge_blocks])
        if left and progress.steps >= left[0] and is_in_force:
            wanted.append(moves[left.pop(0)])
            cut_at(deployers[0], wanted[-1])
        if progress.steps == stop_at:
            stop.drain()

    return await run_training(
        edge_config(*flags), Listening(on_progress, deployers.append), shutdown=stop, resume=resume
    )


def first_weights():
    return build_model(ADAPTED, {}, edge_config(*CHOSEN).training.seed).state_dict()


def bases_of(state):
    return {name: tensor for name, tensor in state.items() if ".base." in name}


def learning_bytes():
    """Bytes of all that learns with its optimizer, and of all that does not."""
    experiment = Experiment(edge_config(*CHOSEN))
    learns = sum(
        p.nbytes for block in experiment.chain.blocks for p in block.named_parameters().values() if p.requires_grad
    )
    return learns, sum(tensor.nbytes for tensor in bases_of(experiment.chain.module.state_dict()).values())


async def test_a_move_carries_adapters_and_their_moments_alone(traffic):
    async with running_trainer() as server:
        result = await train({5: 3, 12: 1, 20: 4}, *CHOSEN, f"trainer.address={server.address}")
    assert result.summary.edge_blocks == 4
    assert_same_bits(plain_state(edge_config(*CHOSEN)), result.module.state_dict())
    assert_same_bits(bases_of(first_weights()), bases_of(result.module.state_dict()))
    learns, frozen = learning_bytes()
    assert [block for block, _, _ in traffic] == [1, 2, 1, 2, 1, 2, 3], "equal from the beginning, so moves alone"
    assert sum(count for _, count, _ in traffic) < 3 * (3 * learns) + 7 * 4096
    assert frozen > 5 * learns


@pytest.fixture
def own_weights(tmp_path):
    """The flags of a run whose trainers draw other weights each time, and the file from which the device begins."""
    path = tmp_path / "start.safetensors"
    torch.manual_seed(1234)
    save_file({name: torch.randn_like(tensor) * 0.1 for name, tensor in first_weights().items()}, path)
    drawn = [*CHOSEN, 'model.factory="tests.support.models.adapted:drawn_anew"', f"training.start_from={path}"]
    return drawn, load_file(path)


async def undisturbed(flags):
    """The state after the same steps with all blocks on the device."""
    return (await train({}, *flags, "deployment.cut=4", "trainers=[]")).module.state_dict()


async def test_where_a_trainer_has_others_each_travels_once_when_its_block_does(traffic, own_weights):
    flags, start = own_weights
    flags = [*flags, "deployment.cut=3"]
    expected = await undisturbed(flags)
    async with running_trainer() as server:
        result = await train({5: 2, 9: 3, 13: 1, 20: 3}, *flags, f"trainer.address={server.address}")
    assert_same_bits(expected, result.module.state_dict())
    assert_same_bits(bases_of(start), bases_of(result.module.state_dict()))
    assert [block for block, _, frozen in traffic if frozen] == [2, 1], "block 0 stays, and block 3 has none"


async def test_a_checkpoint_has_what_learns_and_a_trainer_that_comes_back_gets_the_rest(traffic, own_weights, tmp_path):
    flags, start = own_weights
    expected = await undisturbed(flags)
    stored = ["checkpoints.every_steps=10", "checkpoints.keep=1", f"checkpoints.location={tmp_path / 'edge'}"]
    place = f"checkpoints.location={tmp_path / 'trainer'}"
    async with running_trainer(place) as server:
        address = f"trainer.address={server.address}"
        with pytest.raises(StoppedError):
            await train({}, *flags, *stored, address, stop_at=10)
    learns, _ = learning_bytes()
    kept = sum(path.stat().st_size for side in ("edge", "trainer") for path in (tmp_path / side).rglob("*.safetensors"))
    assert learns < kept < 3 * learns + 64 * 1024
    del traffic[:]
    async with running_trainer(place, f"server.listen={server.address}") as again:
        result = await train({15: 3}, *flags, *stored, f"trainer.address={again.address}", resume=Resume())
    assert [block for block, _, frozen in traffic if frozen] == [1, 2]
    assert_same_bits(expected, result.module.state_dict())
    assert_same_bits(bases_of(start), bases_of(result.module.state_dict()))


async def test_what_learns_has_a_file_of_its_own_beside_the_model(tmp_path):
    result = await train({}, *CHOSEN, "deployment.cut=4", "trainers=[]")
    result.write(tmp_path)
    adapters, whole = load_file(tmp_path / "adapters.safetensors"), load_file(tmp_path / "model.safetensors")
    learning = {name for name in whole if ".lora_" in name or name.startswith("3.")}
    assert_same_bits({name: whole[name] for name in learning}, adapters)
    fresh = adapted()
    fresh.load_state_dict(first_weights())
    assert not fresh.load_state_dict(adapters, strict=False).unexpected_keys
    assert_same_bits(whole, fresh.state_dict())
    replace(result, module=result.module.requires_grad_(True)).write(tmp_path)
    assert not (tmp_path / "adapters.safetensors").exists(), "everything learns"
    (earlier,) = (tmp_path / "earlier").iterdir()
    assert_same_bits(adapters, load_file(earlier / "adapters.safetensors"))


def test_frozen_parameters_that_do_not_fit_are_refused_and_change_nothing():
    block = Experiment(edge_config(*CHOSEN)).chain.blocks[1]
    before, frozen = block_state.frozen_digest(block), block_state.frozen(block)
    short = {name: tensor[:1] for name, tensor in frozen.items()}
    foreign = frozen | {"parameter/1.lora_a.weight": torch.zeros(2, 64)}
    for tensors, sentence in (
        (short, r"'frozen/1\.base\.weight' is .* \(1, 64\); it must be .* \(64, 64\)"),
        ({}, r"'frozen/1\.base\.bias' is missing"),
        (foreign, r"'parameter/1\.lora_a\.weight' is unknown"),
    ):
        with pytest.raises(ProtocolError, match=sentence):
            block_state.put_frozen(block, {name: tensor + 1 for name, tensor in tensors.items()})
    assert block_state.frozen_digest(block) == before
