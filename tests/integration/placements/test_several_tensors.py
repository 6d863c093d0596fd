"""Models between whose blocks several tensors pass, over real sockets: the bits of one process, and the bytes of the report."""

from contextlib import AsyncExitStack

import pytest

from edge_agent.experiment.placement_report import report_on
from edge_agent.experiment.workload import Workload
from isthmus import run_training
from tests.support.placement_kinds import BATCH_SIZE, addresses_of, running_trainers, trainers_flag
from tests.support.plain import assert_same_bits, plain_state
from tests.support.running import edge_config
from tests.support.stand_ins.recording import recorded

pytestmark = pytest.mark.usefixtures("one_thread")
STEPS = 4
PICTURES = [
    'data.train={factory="tests.support.samples:Pictures"}',
    'model.factory="tests.support.models.several:UNet"',
    "model.kwargs={classes=10}",
]
SENTENCES = [
    'model.factory="tests.support.models.several:PaddedEncoder"',
    "model.kwargs={vocabulary=50, classes=4}",
    'data.train={factory="tests.support.samples:Sequences"}',
]
NAMED = [
    'model.factory="tests.support.models.several:NamedEncoder"',
    "model.kwargs={vocabulary=50, classes=4}",
    'data.train={factory="tests.support.samples:Masked"}',
]
COLLATED = [
    *NAMED[:2],
    'data.train={factory="tests.support.samples:Words"}',
    'data.collate="tests.support.batches:padded"',
]
PURCHASES = [
    'model.factory="tests.support.models.several:Recommender"',
    "model.kwargs={vocabulary=50, classes=4}",
    'data.train={factory="tests.support.samples:Purchases"}',
]
MARKED = [
    'data.train={factory="tests.support.samples:MarkedDigits"}',
    'model.factory="tests.support.models.several:UNet"',
    "model.kwargs={classes=10}",
    'training.loss="tests.support.models.losses:of_class_and_quarters"',
]
TRAINING = [
    'training.optimizer={name="sgd", learning_rate=0.05, momentum=0.9, clip_norm=1.0}',
    *(f"data.batch_size={BATCH_SIZE}", f"training.max_steps={STEPS}"),
]
KINDS = {
    "skips and labels stay": (PICTURES, {"edge": ["0:2", "3:"], "near": ["2:3"]}),
    "skips pass by a trainer": (PICTURES, {"edge": ["0:1"], "near": ["1:3"], "far": ["3:"]}),
    "inputs by name": (NAMED, {"edge": ["0:1"], "near": ["1:2"], "far": ["2:"]}),
    "inputs that a function collates": (COLLATED, {"edge": ["0:2"], "near": ["2:"]}),
    "two inputs by their places": (PURCHASES, {"edge": ["0:4"], "near": ["4:"]}),
    "two labels go to a trainer": (MARKED, {"edge": ["0:2"], "near": ["2:"]}),
    "two labels stay": (MARKED, {"edge": ["0:2", "3:"], "near": ["2:3"]}),
    "a mask for two trainers": (SENTENCES, {"edge": ["0:3"], "near": ["3:4"], "far": ["4:"]}),
}
QUICK = ("skips and labels stay", "two inputs by their places", "two labels go to a trainer")


def flags_of(kind, addresses):
    model, ranges = KINDS[kind]
    placed = [f"placement.{worker}={blocks!r}".replace("'", '"') for worker, blocks in ranges.items()]
    permitted = f"privacy.inputs_to={[name for name in ranges if name != 'edge']}".replace("'", '"')
    return [*model, *TRAINING, trainers_flag(addresses, [*ranges]), *placed, permitted]


CODED = ["deployment.codec=uniform4", "deployment.downlink_codec=uniform8"]


@pytest.mark.first_case
@pytest.mark.parametrize(
    ("kind", "codecs"),
    [
        pytest.param(kind, codecs, marks=() if kind in QUICK else pytest.mark.slow)
        for kind, codecs in [*((kind, []) for kind in KINDS), ("a mask for two trainers", CODED)]
    ],
)
async def test_training_equals_one_process_and_a_step_carries_the_bytes_of_the_report(kind, codecs):
    """Codecs that lose something change the weights, and leave masks as they are."""
    async with running_trainers() as servers, AsyncExitStack() as open_ears:
        found = {name: await open_ears.enter_async_context(recorded(at)) for name, at in addresses_of(servers).items()}
        config = edge_config(*flags_of(kind, {name: address for name, (address, _) in found.items()}), *codecs)
        result = await run_training(config)
    if not codecs:
        assert_same_bits(plain_state(edge_config(*KINDS[kind][0], *TRAINING)), result.module.state_dict())
    carried = sum(
        frame.tensor.encoded_bytes for _, ear in found.values() for said in ear.link_messages for frame in said.frames
    )
    assert carried == STEPS * sum(one.bytes for one in report_on(Workload(config)).transfers)
