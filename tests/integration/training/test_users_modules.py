"""Modules of kinds that public bug reports tell of train divided as in a plain loop, bit for bit, or end with a sentence."""

import pytest

from isthmus import run_training
from shared.errors import ModelError, RefusedError
from tests.support.plain import assert_same_bits, plain_state
from tests.support.running import Listening, cut_at, edge_config, running_trainer, train_with

pytestmark = pytest.mark.usefixtures("one_thread")

KINDS = "tests.support.models.kinds"
EXACT = {
    "old_weight_norm": "",
    "old_spectral_norm": "",
    "new_norms": "",
    "pruned": "",
    "left_in_evaluation": "",
    "held_in_evaluation": "",
    "hooked_layers": "",
    "hooked_parameters": "",
    "hooked_sums": "",
    "initialised": "as_buffer=true",
    "checkpointed": "",
    "derived": "",
    "looked_up": "",
    "looked_up at most": "max_norm=1.0",
}

QUICK = {"old_spectral_norm", "left_in_evaluation", "hooked_parameters", "initialised", "looked_up"}
"""Kinds with something of their own in forwards that run again, in modes, hooks, changes in a forward and sparse gradients."""


def flags_of(name, kwargs=""):
    return [
        f'model.factory="{KINDS}:{name.partition(" ")[0]}"',
        f"model.kwargs={{{kwargs}}}",
        'data.train={factory="tests.support.samples:FlatDigits"}',
        f'training.optimizer={{name="sgd", learning_rate=0.05, momentum={0.0 if name.startswith("looked") else 0.9}}}',
        "training.max_steps=12",
    ]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in EXACT]
)
async def test_the_weights_are_those_of_a_plain_loop_also_where_forwards_run_again(name):
    flags = flags_of(name, EXACT[name])
    expected = plain_state(edge_config(*flags))
    async with running_trainer() as trainer:
        for more in (["deployment.cut=3"], ["deployment.cut=3", "training.checkpoint_activations=true"]):
            result = await train_with(trainer, *flags, *more)
            assert_same_bits(expected, result.module.state_dict())


@pytest.mark.slow
@pytest.mark.parametrize("name", EXACT)
async def test_they_are_after_a_move_of_the_block_in_question_too(name):
    flags = flags_of(name, EXACT[name])
    async with running_trainer() as trainer:
        for before, after in ((2, 4), (4, 2)):
            deployers = []

            def progressed(statistics, deployers=deployers, after=after):
                if statistics.steps == 5 and deployers:
                    cut_at(deployers.pop(), after)

            config = edge_config(*flags, f"deployment.cut={before}", f"trainer.address={trainer.address}")
            result = await run_training(config, Listening(progressed, deployers.append))
            assert_same_bits(plain_state(edge_config(*flags)), result.module.state_dict())


@pytest.mark.parametrize("cut", [2, 4])
@pytest.mark.parametrize("first", ["true", "false"])
async def test_parameters_that_begin_to_learn_or_stop_as_they_train_end_the_run(first, cut):
    async with running_trainer() as trainer:
        with pytest.raises(
            ModelError, match=r"block '2' has switched requires_grad of '2.weight' .*training.start_from"
        ):
            await train_with(trainer, *flags_of("switching", f"learns_first={first}"), f"deployment.cut={cut}")


async def test_adapters_that_an_evaluation_merges_end_the_run():
    evaluated = ['data.test={factory="tests.support.samples:FlatDigits"}', "training.evaluate_every_steps=5"]
    async with running_trainer() as trainer:
        with pytest.raises(ModelError, match=r"'2.weight'.* let no train\(\) or eval\(\) merge adapters"):
            await train_with(trainer, *flags_of("merging", "first=0.0"), *evaluated, "deployment.cut=2")


async def test_a_factory_that_gives_what_an_earlier_call_has_made_is_refused_by_name():
    async with running_trainer() as trainer:
        with pytest.raises(RefusedError, match=r"gives '2.weight' again, .*make anew all that it gives"):
            await train_with(trainer, *flags_of("kept_by_the_factory"), "deployment.cut=2")
