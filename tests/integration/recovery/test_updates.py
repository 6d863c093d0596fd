"""Updates that are under way when a process dies: none of their gradients counts twice or not at all."""

import pytest
from safetensors.torch import load_file

from tests.chaos.faults import Fault, Planned
from tests.support.killed_chain import CHOSEN, Chain
from tests.support.plain import assert_same_bits, plain_state
from tests.support.running import edge_config

pytestmark = pytest.mark.usefixtures("one_thread")
SEVERAL = ("training.accumulate_batches=4", "training.max_steps=64")
TOKENS = (*SEVERAL, 'training.mean="token"', 'data.train={factory="tests.support.samples:PartlyLabelled"}')
WHOLE = (
    'training.optimizer={name="adamw", learning_rate=0.003, clip_norm=0.3, clip="model"}',
    "training.max_steps=60",
)
HALF = (
    'training.precision="fp16"',
    "training.max_steps=60",
    'model.factory="tests.support.models.overflowing:overflowing"',
    "model.kwargs={block=2, forwards=[3, 12, 13, 40]}",
    'data.train={factory="tests.support.samples:FlatDigits"}',
)
"""Updates 3, 12, 13 and 40 are skipped; checkpoints are taken after every ten."""
BLOCKS = "shared.execution.blocks:PlacedBlocks"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("told", "point"),
    [
        pytest.param(SEVERAL, ("update", 10), id="between two batches of an update"),
        pytest.param(SEVERAL, ("update", 3), id="in the first update", marks=pytest.mark.full),
        pytest.param(TOKENS, ("update", 10), id="between two batches whose labels count together"),
        pytest.param(WHOLE, ("update", 14), id="before it has scaled its gradients", marks=pytest.mark.full),
        pytest.param(HALF, ("measure", 14), id="before it has told of an overflow"),
        pytest.param(WHOLE, ("measure", 14), id="before it has told its norms", marks=pytest.mark.full),
    ],
)
def test_a_trainer_that_dies_changes_no_bit(told, point, tmp_path):
    function, calls = point
    with Chain(tmp_path, None, {"edge": "0:1", "near": "1:2", "far": "2:"}, replicas=0) as chain:
        chain.kill("far")
        chain.start("far", Planned("trainer", Fault.KILL_TRAINER, f"{BLOCKS}.{function}", calls))
        process, said = chain.agent(*told)
        chain.wait_until_dead("far")
        chain.start("far")
        process.wait(240)
        said.join()
        assert process.returncode == 0, said
        assert_same_bits(plain_state(edge_config(*CHOSEN, *told)), load_file(chain.output / "model.safetensors"))
