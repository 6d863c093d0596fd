"""Batches that are padded to their longest text: each crosses with its own length, and all bits are those of one process."""

from contextlib import AsyncExitStack

import pytest

from edge_agent.experiment.experiment import Experiment
from edge_agent.experiment.placement_report import report_on
from edge_agent.experiment.workload import Workload
from isthmus import run_training
from shared.errors import ConfigError, DataError
from shared.wire.isthmus.v1.tensor_pb2 import Role
from tests.support.placement_kinds import addresses_of, flags_of_document, running_trainers, trainers_flag
from tests.support.plain import assert_same_bits, plain_state
from tests.support.running import edge_config
from tests.support.stand_ins.recording import recorded

pytestmark = pytest.mark.usefixtures("one_thread")
WORDS, LONGEST = "tests.support.samples", 12
TEXTS = [
    'data.collate="tests.support.batches:longest"',
    f"data.longest={LONGEST}",
    "data.batch_size=4",
    "training.max_steps=6",
]
CLASSIFIED = [
    *TEXTS,
    'model.factory="tests.support.models.several:NamedEncoder"',
    "model.kwargs={vocabulary=50, classes=4}",
    f'data.train={{factory="{WORDS}:Words"}}',
    f'data.test={{factory="{WORDS}:Words", kwargs={{samples=30}}}}',
    'privacy.public_inputs=["attention_mask"]',
]
CONTINUED = [
    *TEXTS,
    'data.collate="tests.support.batches:continued"',
    'model.factory="tests.support.models.users.texts:CharLSTM"',
    f'data.train={{factory="{WORDS}:Words", kwargs={{vocabulary=23}}}}',
    "training.loss=token_cross_entropy",
]
KINDS = {
    "two workers": (CLASSIFIED, {"edge": ["0:2"], "near": ["2:"]}, []),
    "labels stay": (CLASSIFIED, {"edge": ["0:2", "3:"], "near": ["2:3"]}, []),
    "a chain of three": (CLASSIFIED, {"edge": ["0:2"], "near": ["2:3"], "far": ["3:"]}, []),
    "labels of every token": (CONTINUED, {"edge": ["0:2"], "near": ["2:"]}, ['privacy.inputs_to=["near"]']),
}


def flags_of(ranges, addresses):
    placed = [f"placement.{worker}={blocks!r}".replace("'", '"') for worker, blocks in ranges.items()]
    return [trainers_flag(addresses, [*ranges]), *placed]


@pytest.mark.first_case
@pytest.mark.parametrize("kind", KINDS)
async def test_training_equals_one_process_and_each_batch_crosses_with_its_own_length(kind):
    model, ranges, permitted = KINDS[kind]
    async with running_trainers() as servers, AsyncExitStack() as open_ears:
        found = {name: await open_ears.enter_async_context(recorded(at)) for name, at in addresses_of(servers).items()}
        config = edge_config(*model, *permitted, *flags_of(ranges, {name: at for name, (at, _) in found.items()}))
        result = await run_training(config)
    assert_same_bits(plain_state(edge_config(*model)), result.module.state_dict())
    crossed = {
        frame.tensor.shape[1]
        for said in found["near"][1].link_messages
        for frame in said.frames
        if frame.role == Role.ROLE_FEATURE and frame.HasField("tensor")
    }
    lengths = {batch.features[0].shape[1] for batch in Experiment(config).loader.iterate(0, 6)}
    assert len(lengths) > 1
    assert crossed >= lengths
    assert max(crossed) <= LONGEST


DIVIDED = {
    "schema": "isthmus.placement/v1",
    "workers": ["edge", "near", "far"],
    "tiles": [
        {"worker": "edge", "blocks": [0, 2]},
        {"worker": "near", "blocks": [2, 4], "samples": [0, 2]},
        {"worker": "far", "blocks": [2, 4], "samples": [2, 4]},
    ],
    "owners": {"2": "near", "3": "near"},
}


@pytest.mark.slow
async def test_parts_of_batches_codecs_and_stale_gradients_have_lengths_too(tmp_path):
    """The last batch has a single sample, so that one worker has a part without any."""
    async with running_trainers() as servers:
        addresses = {name: server.address for name, server in servers.items()}
        result = await run_training(
            edge_config(
                *CLASSIFIED,
                f'data.train={{factory="{WORDS}:Words", kwargs={{samples=25}}}}',
                "data.drop_last=false",
                "training.max_steps=14",
                "deployment.codec=uniform8",
                "deployment.staleness=2",
                *flags_of_document(DIVIDED, addresses, tmp_path),
            )
        )
    assert result.summary.steps == 14


def test_a_report_counts_the_greatest_length():
    placed = ["deployment.cut=2"]
    varying, longest = (
        report_on(Workload(edge_config(*CLASSIFIED, *placed, f'data.collate="tests.support.batches:{name}"', *more)))
        for name, more in (("longest", []), ("padded", []))
    )
    assert [one.bytes for one in varying.transfers] == [one.bytes for one in longest.transfers]


async def test_a_batch_that_is_longer_is_refused_in_a_sentence():
    sentence = r"data\.collate: '.*:longest' returned inputs of length \d+, and data\.longest is 5; raise it"
    with pytest.raises(DataError, match=sentence):
        Experiment(edge_config(*CLASSIFIED, "deployment.cut=2", "data.longest=5"))


def test_lengths_need_a_function_that_makes_batches():
    with pytest.raises(ConfigError, match=r"data.*longest is set and collate is not"):
        edge_config("data.longest=5")
