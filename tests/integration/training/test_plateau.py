"""A rate that falls after evaluations that are no better has torch's bits, wherever blocks are and whoever is killed."""

import pytest
from safetensors.torch import load_file

from isthmus import run_training
from shared.errors import ConfigError
from tests.chaos.faults import Fault, Planned
from tests.support import interrupted, plain_history
from tests.support.killed_chain import Chain
from tests.support.placement_kinds import SHARED, addresses_of, flags_of, permitted, running_trainers
from tests.support.plain import assert_same_bits
from tests.support.plain_tiles import plain_tiles_state
from tests.support.running import edge_config, running_trainer

pytestmark = pytest.mark.usefixtures("one_thread")

STEPS = 90
TRAINING = [
    'model.factory="shared.model.zoo:mlp"',
    "model.kwargs={depth=4}",
    'data.train={factory="tests.support.samples:FlatDigits"}',
    'data.test={factory="tests.support.samples:FlatDigits", kwargs={split="test"}}',
    "data.batch_size=64",
    "training.epochs=10",
    f"training.max_steps={STEPS}",
    "training.evaluate_every_steps=5",
    'training.optimizer={name="sgd", learning_rate=0.7, momentum=0.5, groups=[{match=["*bias"], learning_rate=0.9}]}',
]
"""Steps that are too large, so that losses go up and down."""
PLATEAU = 'training.schedule={name="plateau", factor=0.6, patience=1, threshold=0.02, cooldown=1, min=0.2}'
EVALUATED = {*range(5, STEPS + 1, 5), *range(22, STEPS, 22)}


@pytest.fixture(scope="module")
def expected():
    rows, state = plain_history.plain_run(edge_config(*TRAINING, PLATEAU), EVALUATED.__contains__)
    assert len({row.learning_rate for row in rows}) > 2, "it falls more than once"
    assert rows[-1].learning_rate < rows[-5].learning_rate or rows[-1].learning_rate == 0.2
    return rows, state


@pytest.mark.first_case
@pytest.mark.parametrize("kind", ["two workers", "chain of three", "inverted", "labels stay", "there and back"])
async def test_rates_and_weights_are_those_of_torch(kind, tmp_path, expected):
    async with running_trainers() as servers:
        flags = [*TRAINING, PLATEAU, *flags_of(kind, addresses_of(servers), tmp_path), *permitted(kind, "mlp")]
        result = await run_training(edge_config(*flags, "checkpoints.location=none"))
    assert plain_history.of(result.history) == expected[0]
    assert_same_bits(expected[1], result.module.state_dict())


@pytest.mark.slow
@pytest.mark.parametrize("kind", SHARED)
async def test_owners_of_shared_blocks_have_the_same_rate(kind, tmp_path):
    async with running_trainers() as servers:
        flags = [*TRAINING, PLATEAU, *flags_of(kind, addresses_of(servers), tmp_path), *permitted(kind, "mlp")]
        config = edge_config(*flags, "checkpoints.location=none")
        result = await run_training(config)
    losses = {row.step: row.test_loss for row in result.history if row.test_loss is not None}
    assert_same_bits(plain_tiles_state(config, losses), result.module.state_dict())
    assert len({row.learning_rate for row in result.history}) > 2


async def test_stops_and_moves_of_the_cut_change_no_rate(tmp_path, expected):
    async with running_trainer(f"checkpoints.location={tmp_path / 'trainer'}") as server:
        kept = [f"checkpoints.location={tmp_path / 'edge'}", f"trainer.address={server.address}"]
        config = edge_config(*TRAINING, PLATEAU, *kept, "checkpoints.every_steps=7")
        result = await interrupted.to_the_end(config, cuts={3: 2, 9: 2})
    assert plain_history.of(result.history) == expected[0]
    assert_same_bits(expected[1], result.module.state_dict())


@pytest.mark.slow
@pytest.mark.parametrize("calls", [12, 47])
def test_a_trainer_that_dies_changes_no_rate(calls, tmp_path, expected):
    with Chain(tmp_path, None, {"edge": "0:1", "near": "1:2", "far": "2:"}, replicas=0) as chain:
        chain.kill("far")
        chain.start("far", Planned("trainer", Fault.KILL_TRAINER, "shared.execution.blocks:PlacedBlocks.update", calls))
        process, said = chain.agent(*TRAINING, PLATEAU, "training.evaluate_every_epochs=1")
        chain.wait_until_dead("far")
        chain.start("far")
        process.wait(240)
        said.join()
        assert process.returncode == 0, said
        assert_same_bits(expected[1], load_file(chain.output / "model.safetensors"))


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["data.test=none"], "training.schedule follows evaluations and data.test is left out, so there are none"),
        (['training.schedule={name="plateau", metric="f1"}'], 'schedule.metric is "f1", which is not computed'),
        (['training.schedule={name="plateau", factor=1.0}'], "factor"),
        (["output.record=true", 'output.directory="results"'], "output.record is true and training.schedule.name is "),
        (
            ["deployment.staleness_correction=prediction"],
            "goes by rates that are known before, and plateau has none",
        ),
    ],
)
async def test_a_plateau_that_nothing_can_tell_of_is_refused_in_a_sentence(flags, said):
    given = [flag for flag in TRAINING if not (flag.startswith("data.test") and "data.test=none" in flags)]
    with pytest.raises(ConfigError, match=said):
        await run_training(edge_config(*given, PLATEAU, *(flag for flag in flags if flag != "data.test=none")))
