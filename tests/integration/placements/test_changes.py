"""Placements that change while training goes on, from any kind to any other: the weights stay those of one process."""

import asyncio
import threading
from contextlib import AsyncExitStack

import pytest

from edge_agent.control.service import judged
from edge_agent.experiment.experiment import Experiment
from edge_agent.sessions.trainer_worker import TrainerWorker
from edge_agent.training.choosers import Chooser
from edge_agent.training.events import LinkDown
from isthmus import run_training
from shared.errors import ConfigError
from shared.placement import StepPlan, parse_range
from shared.runtime.placement_executor import PlacementExecutor
from tests.support.experiments import flags
from tests.support.placement_kinds import (
    ACCEPTS_INPUTS,
    BATCH_SIZE,
    PEERS_ALLOWED,
    RANGES,
    SHARED,
    TRAINERS,
    addresses_of,
    flags_of_document,
    running_trainers,
)
from tests.support.plain import assert_same_bits, plain_state
from tests.support.running import Listening, edge_config, place, running_trainer

BLOCKS = 4
WORKERS = ["edge", *TRAINERS]
ALONE = {"edge": ["0:"]}
STEPS_EACH = 25
"""A change is asked for as soon as the one before has been seen, and is prepared beside some steps."""
PERMITTED = 'privacy={inputs_to=["near", "far", "cloud"], gradients_to=["far", "cloud"]}'
pytestmark = pytest.mark.usefixtures("one_thread")


def document(ranges):
    tiles = [
        {"worker": worker, "blocks": list(parse_range(text).bounds(BLOCKS)), "samples": [0, BATCH_SIZE]}
        for worker, texts in ranges.items()
        for text in texts
    ]
    return {"schema": "isthmus.placement/v1", "workers": WORKERS, "tiles": tiles}


def steps_of(count):
    return [f"data.batch_size={BATCH_SIZE}", f"training.max_steps={count}", "training.epochs=50"]


class Changing(Listening):
    """Has the run go to the next placement as soon as it is under one."""

    def __init__(self, placements):
        super().__init__(progressed=self.change, session_opened=self.open)
        self.left, self.deployer, self.in_force = list(placements), None, []

    def open(self, deployer):
        self.deployer = deployer

    def change(self, progress):
        version = progress.deployment.version
        if version in self.in_force or not progress.steps:
            return
        self.in_force.append(version)
        if self.left:
            place(self.deployer, self.left.pop(0))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "optimizer"), [("cnn", "adamw"), pytest.param("tied", "nesterov", marks=pytest.mark.full)]
)
async def test_any_kind_may_follow_any_other(model, optimizer, edge_metrics, tmp_path):
    kinds = [*RANGES.values(), ALONE, *reversed(RANGES.values())]
    first, *others = map(document, kinds)
    chosen = [*flags(model, optimizer), *steps_of(STEPS_EACH * len(kinds) + 2)]
    changing = Changing(others)
    async with running_trainers() as servers:
        placed = flags_of_document(first, addresses_of(servers), tmp_path)
        result = await run_training(edge_config(*chosen, *placed, PERMITTED), changing)
    assert not changing.left
    assert len(changing.in_force) == len(kinds)
    lost = [one for one in edge_metrics[-1].link_losses.collect()[0].samples if one.name.endswith("_total")]
    assert {one.labels["worker"] for one in lost} == set(WORKERS) - {"edge"}
    assert not any(one.value for one in lost), "links that end with a placement are not lost"
    assert_same_bits(plain_state(edge_config(*chosen)), result.module.state_dict())


async def test_the_agent_works_out_no_placement_on_its_event_loop(monkeypatch, tmp_path):
    on_loop = []

    def noted(function):
        def call(*args, **kwargs):
            if threading.current_thread() is threading.main_thread():
                on_loop.append(function.__qualname__)
            return function(*args, **kwargs)

        return call

    for holder, name in [(StepPlan, "__init__"), (PlacementExecutor, "__init__"), (Experiment, "placed")]:
        monkeypatch.setattr(holder, name, noted(getattr(holder, name)))
    asked = []

    def ask(progress):
        if progress.steps and not asked:
            asked.append(asyncio.ensure_future(changed(deployers[0])))

    async def changed(deployer):
        deployer.want(await judged(deployer, document(ALONE)), Chooser.OPERATOR)
        return await deployer.in_force()

    deployers = []
    chosen = [*flags("cnn", "sgd"), *steps_of(6)]
    async with running_trainers() as servers:
        placed = flags_of_document(document(RANGES["two workers"]), addresses_of(servers), tmp_path)
        listening = Listening(progressed=ask, session_opened=deployers.append)
        result = await run_training(edge_config(*chosen, *placed), listening)
    assert {block.worker for block in result.summary.blocks} == {"edge"}
    assert asked[0].result().version == 1
    assert not on_loop


@pytest.mark.slow
async def test_blocks_that_were_shared_end_at_one_worker_as_their_owner_had_them(tmp_path):
    shared = [{**placed, "workers": WORKERS} for placed in SHARED.values()]
    first, *others = [*shared, document(ALONE)]
    chosen = [*flags("tied", "adam"), *steps_of(STEPS_EACH * len(shared) + 4)]
    changing = Changing(others)
    async with running_trainers() as servers:
        placed = flags_of_document(first, addresses_of(servers), tmp_path)
        result = await run_training(edge_config(*chosen, *placed, PERMITTED), changing)
    assert not changing.left
    assert {block.worker for block in result.summary.blocks} == {"edge"}
    assert result.summary.train_loss < 3.0


async def test_a_placement_that_may_not_be_changes_nothing(tmp_path):
    refused = []

    class Refusing(Changing):
        def change(self, progress):
            if progress.steps == 2:
                for wrong in ({"edge": ["0:1"], "near": ["2:"]}, {"near": ["0:2"], "edge": ["2:"]}):
                    with pytest.raises(ConfigError) as refusal:
                        place(self.deployer, document(wrong))
                    refused.append(str(refusal.value))
                with pytest.raises(ConfigError, match="not configured"):
                    place(self.deployer, {**document(ALONE), "workers": [*WORKERS, "stranger"]})

    chosen = [*flags("cnn", "sgd"), *steps_of(6)]
    refusing = Refusing([])
    async with running_trainers() as servers:
        placed = flags_of_document(document(RANGES["two workers"]), addresses_of(servers), tmp_path)
        result = await run_training(edge_config(*chosen, *placed), refusing)
    assert "nobody has block 1" in refused[0]
    assert "inputs_to" in refused[1]
    assert_same_bits(plain_state(edge_config(*chosen)), result.module.state_dict())


async def test_labels_that_the_configuration_keeps_here_stay_whatever_is_placed_later(tmp_path):
    before_and_after = [[], []]

    class Trying(Changing):
        def change(self, progress):
            answers = before_and_after[progress.deployment.version]
            if progress.steps and not answers:
                for ranges in (RANGES["two workers"], RANGES["chain of three"]):
                    for labels in ({}, {"labels": [*ranges][-1]}):
                        answers.append(self.answer({**document(ranges), **labels}))
                answers.append(self.answer(document(ALONE)))

        def answer(self, wanted):
            try:
                place(self.deployer, wanted)
            except ConfigError as refusal:
                return str(refusal)
            return "placed"

    chosen = [*flags("cnn", "sgd"), *steps_of(12)]
    async with running_trainers() as servers:
        staying = {**document(RANGES["labels stay"]), "labels": "edge"}
        placed = flags_of_document(staying, addresses_of(servers), tmp_path)
        result = await run_training(edge_config(*chosen, *placed), Trying([]))
    for *refused, home in before_and_after:
        assert len(refused) == 4
        assert all("labels would go from 'edge' to" in answer for answer in refused)
        assert home == "placed"
    assert_same_bits(plain_state(edge_config(*chosen)), result.module.state_dict())


@pytest.mark.slow
async def test_what_one_trainer_refuses_comes_into_force_nowhere(tmp_path):
    wanted = document({"near": ["0:1"], "edge": ["1:2"], "far": ["2:"]})
    chosen = [*flags("cnn", "adamw"), *steps_of(STEPS_EACH)]
    changing = Changing([wanted])
    async with AsyncExitStack() as servers:
        found = {
            name: await servers.enter_async_context(running_trainer(PEERS_ALLOWED, *more))
            for name, more in (("near", []), ("far", [ACCEPTS_INPUTS]), ("cloud", [ACCEPTS_INPUTS]))
        }
        placed = flags_of_document(document(RANGES["chain of three"]), addresses_of(found), tmp_path)
        result = await run_training(edge_config(*chosen, *placed, PERMITTED), changing)
    assert changing.in_force == [0], "nobody went back either, for there is no checkpoint to go back to"
    assert not changing.left
    assert_same_bits(plain_state(edge_config(*chosen)), result.module.state_dict())


THERE_AND_BACK = [
    document({"edge": ["0:1"], "near": ["1:3"], "far": ["3:"]}),
    document({"edge": ["0:1"], "near": ["1:2"], "far": ["2:"]}),
    document({"edge": ["0:1"], "near": ["1:3"], "far": ["3:"]}),
]
"""Block 2 goes to another trainer and comes back."""


@pytest.mark.slow
async def test_blocks_that_move_between_trainers_never_pass_the_device(tmp_path, monkeypatch):
    passed = []
    download, upload = TrainerWorker.download, TrainerWorker.take

    def downloading(trainer, block, *, weights_only, **others):
        passed.append((trainer.name, block, "at the end" if weights_only else "to go on"))
        return download(trainer, block, weights_only=weights_only, **others)

    def uploading(trainer, block, *others):
        passed.append((trainer.name, block, "uploaded"))
        return upload(trainer, block, *others)

    monkeypatch.setattr(TrainerWorker, "download", downloading)
    monkeypatch.setattr(TrainerWorker, "take", uploading)
    first, *others = THERE_AND_BACK
    chosen = [*flags("cnn", "adamw"), *steps_of(STEPS_EACH * 3 + 2)]
    changing = Changing(others)
    async with running_trainers() as servers:
        placed = flags_of_document(first, addresses_of(servers), tmp_path)
        result = await run_training(edge_config(*chosen, *placed), changing)
    assert changing.in_force == [0, 1, 2]
    assert passed == [("near", 1, "at the end"), ("near", 2, "at the end"), ("far", 3, "at the end")]
    assert_same_bits(plain_state(edge_config(*chosen)), result.module.state_dict())


@pytest.mark.slow
async def test_a_trainer_that_may_not_dial_the_one_that_has_the_block_leaves_the_old_placement_in_force(tmp_path):
    first, wanted, _ = THERE_AND_BACK
    chosen = [*flags("cnn", "adamw"), *steps_of(STEPS_EACH)]
    changing = Changing([wanted])
    async with running_trainer(PEERS_ALLOWED) as near, running_trainer() as far, running_trainer() as cloud:
        addresses = addresses_of({"near": near, "far": far, "cloud": cloud})
        placed = flags_of_document(first, addresses, tmp_path)
        result = await run_training(edge_config(*chosen, *placed), changing)
    assert changing.in_force == [0]
    assert not changing.left
    assert_same_bits(plain_state(edge_config(*chosen)), result.module.state_dict())


class TakingBack(Listening):
    """Has the run begin to change its placement several times, and takes each request back once the links have ended."""

    TIMES = 3

    def __init__(self):
        others = {LinkDown: lambda _event: self.take_back()}
        super().__init__(progressed=self.change, session_opened=self.open, others=others)
        self.deployer, self.before, self.wished, self.taken_back = None, None, 0, 0

    def open(self, deployer):
        self.deployer, self.before = deployer, deployer.placement

    def change(self, progress):
        if self.wished == self.taken_back < self.TIMES and progress.steps > 5 * self.wished:
            self.wished += 1
            place(self.deployer, document({"edge": ["0:2"], "near": ["2:3"], "far": ["3:"]}))

    def take_back(self):
        if self.deployer.is_ready:
            self.deployer.want(self.before, Chooser.OPERATOR)
            self.taken_back += 1


async def test_a_request_that_is_taken_back_as_the_links_end_has_no_trainer_joined_again(monkeypatch, tmp_path):
    joins, join = [], TrainerWorker.join

    async def counted_join(worker):
        joins.append(worker.name)
        return await join(worker)

    monkeypatch.setattr(TrainerWorker, "join", counted_join)
    async with running_trainers() as servers:
        placed = flags_of_document(
            document({"edge": ["0:1"], "near": ["1:3"], "far": ["3:"]}), addresses_of(servers), tmp_path
        )
        config = edge_config(*flags("cnn", "adamw"), *steps_of(30), *placed, "training.evaluate_every_epochs=0")
        seen = TakingBack()
        result = await run_training(config, seen)
    assert seen.taken_back == TakingBack.TIMES
    assert sorted(joins) == ["cloud", "far", "near"], "as the run began"
    assert_same_bits(plain_state(config), result.module.state_dict())
