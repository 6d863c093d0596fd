"""Models with tied weights over real sockets: the blocks that use one weight stay on the device, as the labels do."""

import pytest

from edge_agent.experiment.experiment import Experiment
from isthmus import run_training
from shared.errors import ConfigError
from tests.support.placement_kinds import BATCH_SIZE, RANGES, addresses_of, flags_of, running_trainers
from tests.support.plain import assert_same_bits, plain_state
from tests.support.running import edge_config

pytestmark = pytest.mark.usefixtures("one_thread")
TEXT = [
    'model.factory="tests.support.models.tied:TiedText"',
    "model.kwargs={layers=2, vocabulary=50, dropout=0.2}",
    'data.train={factory="tests.support.samples:Sequences"}',
]
LANGUAGE = [
    'model.factory="tests.support.models.asking:Gpt"',
    "model.kwargs={layers=1, tied=true}",
    'data.train={factory="tests.support.samples:NextTokens"}',
    'training.loss="token_cross_entropy"',
]
FLAGS = [
    'training.optimizer={name="adamw", learning_rate=0.003, clip_norm=1.0}',
    *(f"data.batch_size={BATCH_SIZE}", "data.drop_last=false", "training.epochs=3", "training.max_steps=10"),
]


@pytest.mark.first_case
@pytest.mark.parametrize("model", [TEXT, LANGUAGE], ids=["classes", "language"])
@pytest.mark.parametrize("kind", ["labels stay", "chain, and labels stay"])
async def test_a_tied_model_with_labels_that_stay_trains_as_in_one_process(tmp_path, kind, model):
    async with running_trainers() as servers:
        permitted = [f"privacy.inputs_to={[worker for worker in RANGES[kind] if worker != 'edge']}"]
        placed = [*flags_of(kind, addresses_of(servers), tmp_path), *permitted]
        result = await run_training(edge_config(*model, *FLAGS, *placed))
    assert_same_bits(plain_state(edge_config(*model, *FLAGS)), result.module.state_dict())
    assert [block.worker for block in result.summary.blocks][::3] == ["edge", "edge"]


def test_a_cut_that_parts_the_blocks_is_refused_and_not_chosen():
    expected = r'block 0 \(table\) and block 3 \(head\) use one weight, .* as edge = \["0:2", "3:4"\]'
    with pytest.raises(ConfigError, match=expected):
        Experiment(edge_config(*TEXT, *FLAGS, "deployment.cut=2", 'privacy.inputs_to=["trainer"]'))
    (tile,) = Experiment(edge_config(*TEXT, *FLAGS)).placement.tiles
    assert (tile.worker, tile.first, tile.stop) == ("edge", 0, 4)
