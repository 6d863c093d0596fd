"""Invariant 1: with K = 0 and a lossless codec, split training equals one process, bit for bit, at every cut.

All models with all optimizers at all cuts are tried over sockets by `make test-full`, without sockets by
tests/unit/shared/execution/test_every_kind.py, and some of them here.
"""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from shared.registry import OPTIMIZERS as REGISTERED
from tests.support.crossed import thinned
from tests.support.examples import examples
from tests.support.experiments import CUTS, EVERY_PAIR, FIRST_CUTS, MODELS, OPTIMIZERS, SOME, STEPS, flags
from tests.support.plain import assert_same_bits, plain_state
from tests.support.running import edge_config, run_agent, running_trainer, train_with, trainer_process

pytestmark = pytest.mark.usefixtures("one_thread")


def test_every_optimizer_is_tried():
    assert {edge_config(*flags("mlp", optimizer)).training.optimizer.name for optimizer in OPTIMIZERS} == set(
        REGISTERED
    )


def test_some_pairs_have_every_model_and_every_optimizer():
    assert {model for model, _ in SOME} == set(MODELS)
    assert {optimizer for _, optimizer in SOME} == set(OPTIMIZERS)


@pytest.mark.parametrize(("model", "optimizer"), EVERY_PAIR)
async def test_every_cut_equals_one_process(model, optimizer):
    expected = plain_state(edge_config(*flags(model, optimizer)))
    evaluations = set()
    async with running_trainer() as server:
        for cut in range(FIRST_CUTS[model], CUTS[model] + 1):
            result = await train_with(server, *flags(model, optimizer, f"deployment.cut={cut}"))
            assert result.summary.steps == STEPS
            assert result.summary.edge_blocks == cut
            assert_same_bits(expected, result.module.state_dict())
            evaluations.add((result.summary.accuracy, result.summary.test_loss))
        assert len(result.summary.blocks) == CUTS[model], "every cut of this model was tried"
    assert {block.worker for block in result.summary.blocks} == {"edge"}
    assert len(evaluations) == 1, "the last weights are the same, so are accuracy and loss"


async def test_tied_weights_and_their_stashed_copies_stay_one():
    chosen = flags("tied", "adam", "deployment.cut=2", "deployment.backward=stash")
    async with running_trainer() as server:
        module = (await train_with(server, *chosen)).module
    assert_same_bits(plain_state(edge_config(*chosen)), module.state_dict())
    assert all(module[block].first.weight is module[block].second.weight for block in (1, 2))


@pytest.mark.slow
@pytest.mark.parametrize("model", thinned(zip(MODELS), lambda values: values[0] == "cnn"))
def test_two_processes_equal_one(model, tmp_path):
    chosen = flags(
        model, "adamw", "compute.threads=1", "compute.device=cpu", "deployment.cut=2", f"output.directory={tmp_path}"
    )
    expected = plain_state(edge_config(*flags(model, "adamw")))
    with trainer_process("compute.threads=1", "compute.device=cpu") as (_, address):
        done = run_agent("run", f"--trainer={address}", *(f"--set={flag}" for flag in chosen))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"summary: {tmp_path / 'summary.json'}"
    assert_same_bits(expected, load_file(tmp_path / "model.safetensors"))


@pytest.mark.slow
@settings(max_examples=examples(12), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_training_equals_one_process(data):
    import asyncio

    model = data.draw(st.sampled_from(sorted(MODELS)))
    chosen = [
        *flags(model, data.draw(st.sampled_from(sorted(OPTIMIZERS)))),
        f"data.batch_size={data.draw(st.integers(2, 40))}",
        f"training.seed={data.draw(st.integers(0, 2**31))}",
        f"data.drop_last={data.draw(st.sampled_from(['true', 'false']))}",
        f"training.max_steps={data.draw(st.integers(1, 12))}",
        f"link.chunk_bytes={data.draw(st.sampled_from([1024, 4096, 1 << 20]))}",
    ]
    cut = data.draw(st.integers(FIRST_CUTS[model], CUTS[model]))

    async def split():
        async with running_trainer("link.chunk_bytes=2048") as server:
            return await train_with(server, *chosen, f"deployment.cut={cut}")

    assert_same_bits(plain_state(edge_config(*chosen)), asyncio.run(split()).module.state_dict())


@pytest.mark.slow
def test_a_lossy_codec_is_not_exact_or_the_comparison_compares_nothing():
    import asyncio

    chosen = flags("cnn", "sgd", "deployment.cut=2")

    async def split():
        async with running_trainer() as server:
            return await train_with(server, *chosen, "deployment.codec=fp16")

    state = asyncio.run(split()).module.state_dict()
    with pytest.raises(AssertionError, match="differ"):
        assert_same_bits(plain_state(edge_config(*chosen)), state)
