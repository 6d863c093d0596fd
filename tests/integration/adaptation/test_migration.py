"""Invariant 1 across migrations: moving the cut while training changes no bit, and a failed move leaves the old cut."""

import asyncio
import random

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from isthmus import run_training
from shared.client.trainer import TrainerClient
from shared.errors import IsthmusError, ModelError, UnreachableError
from shared.training import held_blocks
from tests.support.examples import examples
from tests.support.experiments import CUTS, FIRST_CUTS, MODELS, MOST_OPTIMIZERS_SLOW, OPTIMIZERS, flags
from tests.support.plain import assert_same_bits, plain_state
from tests.support.running import Listening, cut_at, edge_config, running_trainer

FLAT_DIGITS = 'data.train={factory="tests.support.samples:FlatDigits"}'
pytestmark = pytest.mark.usefixtures("one_thread")


async def train_and_move(moves, *chosen):
    """Train, asking for cut `moves[step]` when that step is done."""
    deployers = []

    def on_progress(progress):
        if progress.steps in moves:
            cut_at(deployers[0], moves[progress.steps])

    async with running_trainer() as server:
        config = edge_config(*chosen, f"trainer.address={server.address}")
        return await run_training(config, Listening(on_progress, deployers.append))


@pytest.mark.slow
@settings(max_examples=examples(20), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    model=st.sampled_from(sorted(MODELS)),
    optimizer=st.sampled_from(sorted(OPTIMIZERS)),
    seed=st.integers(0, 2**31),
    data=st.data(),
)
def test_any_sequence_of_migrations_changes_no_bit(model, optimizer, seed, data):
    cuts = st.integers(FIRST_CUTS[model], CUTS[model])
    start = data.draw(cuts)
    moves = data.draw(st.dictionaries(st.integers(1, 18), cuts, min_size=1, max_size=6))
    chosen = [*flags(model, optimizer), f"training.seed={seed}", f"deployment.cut={start}"]
    result = asyncio.run(train_and_move(moves, *chosen))
    blocks, last = len(result.summary.blocks), moves[max(moves)]
    was_alone = blocks in (start, *(cut for step, cut in moves.items() if step < max(moves)))
    # A trainer without blocks is prepared beside training, which may end before.
    assert result.summary.edge_blocks == last or (was_alone and result.summary.edge_blocks == blocks)
    assert_same_bits(plain_state(edge_config(*chosen)), result.module.state_dict())


@pytest.mark.first_case
@pytest.mark.parametrize("optimizer", MOST_OPTIMIZERS_SLOW)
async def test_both_directions_in_one_run(optimizer):
    chosen = [*flags("cnn", optimizer), "deployment.cut=1"]
    result = await train_and_move({5: 3, 12: 1, 13: 4, 20: 2, 25: 4}, *chosen)
    assert_same_bits(plain_state(edge_config(*chosen)), result.module.state_dict())


@pytest.mark.parametrize("limit", [0, 2])
async def test_an_edge_on_which_nothing_learns_becomes_one_that_learns_and_back(limit):
    chosen = [*flags("mlp", "adam"), 'model.frozen=["0"]', "deployment.cut=1", f"deployment.staleness={limit}"]
    result = await train_and_move({9: 3, 15: 1, 18: 2}, *chosen)
    assert (result.summary.steps, result.summary.edge_blocks) == (30, 2)
    if limit == 0:
        assert_same_bits(plain_state(edge_config(*chosen)), result.module.state_dict())


async def test_migrations_under_staleness_lose_and_repeat_no_step():
    chosen = [*flags("cnn", "sgd"), "deployment.cut=1", "deployment.staleness=3", "deployment.codec=uniform8"]
    steps = random.Random(3).sample(range(1, 29), 6)
    result = await train_and_move({step: 1 + step % 4 for step in steps}, *chosen)
    assert result.summary.steps == 30
    assert torch.isfinite(torch.tensor(result.summary.train_loss))


@pytest.mark.slow
async def test_a_cut_out_of_range_is_refused_and_training_goes_on():
    refusals = []

    def on_start(deployer):
        for cut in (0, 5):
            with pytest.raises(ModelError, match="a cut is 1 to 4") as refusal:
                cut_at(deployer, cut)
            refusals.append(refusal)

    async with running_trainer() as server:
        config = edge_config(*flags("cnn", "sgd"), f"trainer.address={server.address}")
        result = await run_training(config, Listening(session_opened=on_start))
    assert len(refusals) == 2
    assert_same_bits(plain_state(edge_config(*flags("cnn", "sgd"))), result.module.state_dict())


async def test_a_frozen_block_moves_without_being_sent(monkeypatch):
    sent = []
    upload = TrainerClient.upload_block

    async def recorded(self, session_id, tensor, *others):
        sent.append(tensor.key.block)
        return await upload(self, session_id, tensor, *others)

    monkeypatch.setattr(TrainerClient, "upload_block", recorded)
    chosen = [*flags("mlp", "sgd"), 'model.frozen=["1"]', "deployment.cut=3"]
    await train_and_move({5: 1}, *chosen)
    assert sent == [2], "block 2 learns and was sent, block 1 is frozen and was not"


@pytest.mark.parametrize("limit", [0, 2])
async def test_buffers_that_no_state_dict_holds_move_with_their_block(limit):
    model = ['model.factory="tests.support.models.remembering:remembering"', FLAT_DIGITS, "training.max_steps=30"]
    result = await train_and_move({5: 3, 9: 1, 14: 2}, *model, "deployment.cut=1", f"deployment.staleness={limit}")
    if limit == 0:
        assert_same_bits(plain_state(edge_config(*model)), result.module.state_dict())
    for block in (1, 2):
        assert result.module[block].seen == 30, "the count went with the block, wherever it was"


@pytest.mark.slow
async def test_a_commit_whose_answer_is_lost_is_not_lost(monkeypatch):
    """The trainer has moved the cut, the edge does not hear of it: it asks again, and goes on with the new one."""
    commit = TrainerClient.commit_placement
    lost = []

    async def losing(self, request):
        answer = await commit(self, request)
        if not request.prepare and not lost:
            lost.append(request.placement.version)
            raise UnreachableError("the answer was lost")
        return answer

    monkeypatch.setattr(TrainerClient, "commit_placement", losing)
    chosen = [*flags("cnn", "adam"), "deployment.cut=2", "trainer.give_up_seconds=60"]
    result = await train_and_move({7: 3}, *chosen)
    assert lost == [1]
    assert result.summary.edge_blocks == 3
    assert_same_bits(plain_state(edge_config(*chosen)), result.module.state_dict())


@pytest.mark.slow
async def test_an_edge_without_memory_for_what_arrives_keeps_its_cut(monkeypatch):
    deployers, refused, build = [], [], held_blocks.build_optimizer

    def scarce(parameters, *_config):
        refused.append(len(parameters))
        raise MemoryError("not enough of it")

    def on_progress(progress):
        if progress.steps == 7:  # both sides have built what they run
            monkeypatch.setattr(held_blocks, "build_optimizer", scarce)
            cut_at(deployers[0], 3)
        if refused:
            monkeypatch.setattr(held_blocks, "build_optimizer", build)

    chosen = [*flags("cnn", "adam"), "deployment.cut=2"]
    async with running_trainer() as server:
        config = edge_config(*chosen, f"trainer.address={server.address}")
        result = await run_training(config, Listening(on_progress, deployers.append))
    assert refused
    assert result.summary.edge_blocks == 2
    assert_same_bits(plain_state(edge_config(*chosen)), result.module.state_dict())


@pytest.mark.first_case
@pytest.mark.parametrize("moves", [{7: 1}, {7: 3}], ids=["to the cloud", "to the edge"])
async def test_a_transfer_that_fails_leaves_both_sides_as_they_were(monkeypatch, moves):
    name = "upload_block" if moves[7] < 2 else "download_block"
    transfer, failures = getattr(TrainerClient, name), []

    async def failing_once(*arguments, **more):
        if not failures:
            failures.append(name)
            raise IsthmusError("the transfer was refused")
        return await transfer(*arguments, **more)

    monkeypatch.setattr(TrainerClient, name, failing_once)
    chosen = [*flags("cnn", "adam"), "deployment.cut=2"]
    result = await train_and_move(moves, *chosen)
    assert failures
    assert result.summary.edge_blocks == 2
    assert_same_bits(plain_state(edge_config(*chosen)), result.module.state_dict())
