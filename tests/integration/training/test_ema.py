"""The average of the weights has the bits of torch's, wherever blocks are and go, and whoever is killed."""

import pytest
from safetensors.torch import load_file

from edge_agent.run import result_writer
from edge_agent.sessions.resuming import Resume
from isthmus import run_training
from shared.errors import ConfigError, StorageError
from tests.chaos.faults import Fault, Planned
from tests.support import interrupted
from tests.support.experiments import flags
from tests.support.killed_chain import CHOSEN, Chain
from tests.support.placement_kinds import RANGES, SHARED, addresses_of, flags_of, permitted, running_trainers
from tests.support.plain import assert_same_bits, plain_average, plain_state
from tests.support.plain_tiles import plain_tiles_state
from tests.support.running import edge_config, running_trainer

pytestmark = pytest.mark.usefixtures("one_thread")

EMA = "training.ema={decay=0.9}"
STEPS = ["data.batch_size=64", "training.max_steps=14", "data.drop_last=false"]


@pytest.mark.first_case
@pytest.mark.parametrize("kind", RANGES)
async def test_it_is_that_of_torch(kind, tmp_path):
    chosen = [*flags("cnn", "adamw"), *STEPS, EMA]
    async with running_trainers() as servers:
        placed = [*flags_of(kind, addresses_of(servers), tmp_path), *permitted(kind, "cnn")]
        config = edge_config(*chosen, *placed, f"output.directory={tmp_path / 'out'}")
        result = await run_training(config, write_result=result_writer(config))
    expected = plain_average(edge_config(*chosen))
    assert_same_bits(expected, dict(result.average))
    assert_same_bits(expected, load_file(tmp_path / "out" / "ema.safetensors"))
    assert_same_bits(plain_state(edge_config(*chosen)), load_file(tmp_path / "out" / "model.safetensors"))


@pytest.mark.slow
@pytest.mark.parametrize("kind", SHARED)
async def test_owners_of_shared_blocks_keep_it(kind, tmp_path):
    chosen = [*flags("cnn", "adamw"), *STEPS, EMA]
    async with running_trainers() as servers:
        placed = [*flags_of(kind, addresses_of(servers), tmp_path), *permitted(kind, "cnn")]
        config = edge_config(*chosen, *placed)
        result = await run_training(config)
    expected = {}
    plain_tiles_state(config, averages=expected)
    assert_same_bits(expected, dict(result.average))


@pytest.mark.parametrize(
    "more",
    [
        ["training.accumulate_batches=3"],
        pytest.param(['training.precision="fp16"'], marks=pytest.mark.slow),
        ['model.frozen=["stem"]'],
        pytest.param(['training.optimizer={name="sgd", learning_rate=0.05}'], marks=pytest.mark.slow),
    ],
)
async def test_it_follows_every_update_and_what_does_not_learn_stays(more):
    chosen = [*flags("cnn", "adamw"), *STEPS, EMA, *more]
    async with running_trainer() as server:
        config = edge_config(*chosen, "deployment.cut=2", f"trainer.address={server.address}")
        result = await run_training(config)
    assert_same_bits(plain_average(edge_config(*chosen)), dict(result.average))


async def test_tied_weights_have_one_average():
    chosen = [*flags("tied", "adam"), *STEPS, EMA]
    async with running_trainer() as server:
        config = edge_config(*chosen, "deployment.cut=2", f"trainer.address={server.address}")
        result = await run_training(config)
    assert_same_bits(plain_average(edge_config(*chosen)), dict(result.average))


async def test_stops_and_moves_of_the_cut_change_no_bit(tmp_path):
    chosen = [*flags("mlp", "adamw"), EMA, "training.max_steps=60", "training.epochs=9"]
    async with running_trainer(f"checkpoints.location={tmp_path / 'trainer'}") as server:
        kept = [f"checkpoints.location={tmp_path / 'edge'}", f"trainer.address={server.address}"]
        config = edge_config(*chosen, *kept, "checkpoints.every_steps=7", "deployment.cut=1")
        result = await interrupted.to_the_end(config, cuts={3: 4, 9: 2, 15: 4})
    assert_same_bits(plain_average(edge_config(*chosen)), dict(result.average))
    assert_same_bits(plain_state(edge_config(*chosen)), result.module.state_dict())


async def test_it_is_kept_until_the_results_can_be_written(tmp_path):
    def failing(_result):
        raise StorageError("the disk is full")

    chosen = [*flags("mlp", "adamw"), EMA]
    async with running_trainer(f"checkpoints.location={tmp_path / 'trainer'}") as server:
        kept = [f"checkpoints.location={tmp_path / 'edge'}", f"trainer.address={server.address}", "deployment.cut=2"]
        config = edge_config(*chosen, *kept)
        with pytest.raises(StorageError, match="the trained model is kept"):
            await run_training(config, write_result=failing)
    done = await run_training(config, resume=Resume())
    assert_same_bits(plain_average(edge_config(*chosen)), dict(done.average))
    assert_same_bits(plain_state(edge_config(*chosen)), done.module.state_dict())


@pytest.mark.slow
@pytest.mark.parametrize(("killed", "function", "calls"), [("far", "update", 35), ("near", "backward", 61)])
def test_a_trainer_that_dies_changes_no_bit(killed, function, calls, tmp_path):
    told = (EMA, "training.max_steps=70")
    with Chain(tmp_path, None, {"edge": "0:1", "near": "1:2", "far": "2:"}, replicas=0) as chain:
        chain.kill(killed)
        fault = Planned("trainer", Fault.KILL_TRAINER, f"shared.execution.blocks:PlacedBlocks.{function}", calls)
        chain.start(killed, fault)
        process, said = chain.agent(*told)
        chain.wait_until_dead(killed)
        chain.start(killed)
        process.wait(240)
        said.join()
        assert process.returncode == 0, said
        assert_same_bits(plain_average(edge_config(*CHOSEN, *told)), load_file(chain.output / "ema.safetensors"))


async def test_without_one_nothing_of_it_is_there(tmp_path):
    async with running_trainer() as server:
        chosen = [*flags("mlp", "sgd"), f"output.directory={tmp_path}", f"trainer.address={server.address}"]
        config = edge_config(*chosen, "training.max_steps=3")
        result = await run_training(config, write_result=result_writer(config))
    assert result.average is None
    assert not (tmp_path / "ema.safetensors").exists()


def test_a_decay_that_is_none_is_refused_in_a_sentence():
    with pytest.raises(ConfigError, match="decay"):
        edge_config(*flags("mlp", "sgd"), "training.ema={decay=1.0}")
