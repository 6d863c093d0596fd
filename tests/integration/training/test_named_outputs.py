"""A model that returns a dictionary or a tuple trains on one entry of it, at every cut as one process would."""

import pytest
import torch
from torch import nn

from edge_agent.experiment.workload import Workload
from shared.errors import ExitCode
from shared.model.build import build_model
from tests.support.commands import agent_fails
from tests.support.plain import assert_same_bits
from tests.support.running import edge_config, running_trainer, train_with

pytestmark = pytest.mark.usefixtures("one_thread")
STEPS = 12


def chosen(factory, *more):
    return [
        f'model.factory="tests.support.models.outputs:{factory}"',
        'data.train={factory="tests.support.samples:FlatDigits"}',
        'training.optimizer={name="sgd", learning_rate=0.1}',
        f"training.max_steps={STEPS}",
        "training.epochs=1",
        "training.evaluate_every_epochs=0",
        *more,
    ]


def plainly_trained(workload, factory, entry):
    """The state that a user's own loop ends with."""
    module = build_model(f"tests.support.models.outputs:{factory}", {}, workload.config.training.seed)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for batch in workload.loader.iterate(0, STEPS):
        nn.functional.cross_entropy(module(batch.inputs)[entry], batch.labels).backward()
        optimizer.step()
        optimizer.zero_grad()
    return module.state_dict()


@pytest.mark.first_case
@pytest.mark.parametrize(("factory", "entry"), [("named", "logits"), ("in_blocks", "logits"), ("paired", 0)])
async def test_every_cut_equals_a_plain_loop_over_that_entry(factory, entry):
    output = f'model.output="{entry}"'
    workload = Workload(edge_config(*chosen(factory, output)))
    expected = plainly_trained(workload, factory, entry)
    cuts = range(1, len(workload.chain.blocks) + 1)
    assert len(cuts) >= 3
    async with running_trainer() as server:
        for cut in cuts:
            result = await train_with(server, *chosen(factory, output, f"deployment.cut={cut}"))
            assert_same_bits(dict(expected), dict(result.module.state_dict()))


@pytest.mark.first_case
@pytest.mark.parametrize(
    ("factory", "output", "sentence"),
    [
        ("named", "scores", "model.output is 'scores', but Named returns 'hidden', 'logits'"),
        ("in_blocks", "loss", "model.output is 'loss', but Head returns 'logits'"),
        ("paired", "2", "model.output is '2', but Paired returns '0', '1'"),
        ("fielded", "2", "model.output is '2', but Fielded returns '0', '1', 'hidden', 'logits'"),
    ],
)
def test_an_entry_that_is_not_there_is_refused_with_those_that_are(factory, output, sentence):
    said = agent_fails(ExitCode.MODEL, sentence, flags=chosen(factory, f"model.output={output}"))
    assert "ModelError" not in said, "an error of ours is a sentence by itself"


@pytest.mark.parametrize("output", ["logits", "1"])
def test_an_entry_of_a_named_tuple_is_meant_by_its_name_or_its_place(output):
    chain = Workload(edge_config(*chosen("fielded", f'model.output="{output}"'))).chain
    assert [tuple(spec.shape) for spec in chain.outputs] == [(32, 10)]


def test_an_entry_of_one_tensor_is_refused():
    agent_fails(
        ExitCode.MODEL,
        "returns a Tensor and neither a dictionary nor a tuple; leave it out",
        flags=["model.output=logits"],
    )
