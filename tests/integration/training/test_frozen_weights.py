"""Fine-tuning: weights that do not learn are many times those that do, and come from a file that only the device has."""

import json
import math
from itertools import product

import pytest
from safetensors.torch import load_file, save_file

from edge_agent.sessions.resuming import Resume
from edge_agent.training.shutdown import Shutdown
from isthmus import run_training
from shared.errors import StoppedError
from tests.support.group_flags import group_of, trained
from tests.support.models.adapted import on_a_body
from tests.support.placement_kinds import BATCH_SIZE, addresses_of, flags_of, running_trainers
from tests.support.plain import assert_same_bits, plain_state
from tests.support.running import (
    Listening,
    agent_process,
    cut_at,
    edge_config,
    heard_trainer_process,
    held_port,
    place,
    running_trainer,
)

pytestmark = pytest.mark.usefixtures("one_thread")
BLOCKS, STEPS = 4, 24
LEARNING = {"adapters": ["*lora_*"], "last layer": ["3"], "biases of the last layer": ["3.bias"]}
WIDTHS = {10: 20, 100: 200, 1000: 2000}
"""The width at which the frozen weights of a layer are so many times its adapter."""
FACTORY = "tests.support.models.adapted:on_a_body"


class FineTuning:
    """A model of a width, whose first weights are in a file of the device, and what of it learns."""

    def __init__(self, folder, width, learning="adapters", *more):
        self._file = folder / "body.safetensors"
        scale = 8 / math.sqrt(width)
        save_file({name: value * scale for name, value in on_a_body(width).state_dict().items()}, self._file)
        self._width = width
        self._more = [
            f'model.factory="{FACTORY}"',
            f"model.learns={json.dumps(LEARNING[learning])}",
            'data.train={factory="tests.support.samples:FlatDigits"}',
            'training.optimizer={name="adamw", learning_rate=0.003}',
            f"training.max_steps={STEPS}",
            "training.evaluate_every_epochs=0",
            *more,
        ]

    @property
    def flags(self):
        """Return the flags of an agent."""
        return [*self._more, f"model.kwargs={{width={self._width}}}", f"training.start_from={self._file}"]

    def assert_trained(self, state):
        """Compare a state with that of a plain loop that begins with the file, and the frozen weights with the file."""
        kwargs = f'model.kwargs={{width={self._width}, start="{self._file}"}}'
        expected = plain_state(edge_config(*self._more, kwargs))
        assert_same_bits(expected, state)
        before = load_file(self._file)
        changed = {name for name, value in state.items() if not value.equal(before[name])}
        assert changed, "something has learned"
        assert len(changed) < len(state) / 2


TIMES = [pytest.param(times, marks=() if times == 100 else pytest.mark.slow) for times in WIDTHS]
MARKS = {2: (), 1: pytest.mark.slow, 0: pytest.mark.full}
"""By how many of its two values a case has in common with the usual one, whose cut is 2 and which has 100 times the weights."""
TIMES_AND_CUTS = [
    pytest.param(times, cut, marks=MARKS[(times == 100) + (cut == 2)])
    for times, cut in product(WIDTHS, range(1, BLOCKS))
]


@pytest.mark.parametrize(("times", "cut"), TIMES_AND_CUTS)
@pytest.mark.parametrize("learning", LEARNING)
async def test_frozen_weights_reach_a_trainer_without_them_at_every_cut(times, learning, cut, tmp_path):
    tuning = FineTuning(tmp_path, WIDTHS[times], learning)
    async with running_trainer() as server:
        result = await run_training(
            edge_config(*tuning.flags, f"deployment.cut={cut}", f"trainer.address={server.address}")
        )
    tuning.assert_trained(result.module.state_dict())


async def moved(asked, ask, *flags, stop_at=None, resume=None):
    """Train, and ask for each next placement once the one before is seen. Returns the result, and the cuts that were seen."""
    deployers, cuts, stop, left = [], {}, Shutdown(), list(asked)

    def on_progress(progress):
        if progress.steps and progress.deployment.version not in cuts:
            cuts[progress.deployment.version] = progress.deployment.edge_blocks
            if left:
                ask(deployers[0], left.pop(0))
        if progress.steps == stop_at:
            stop.drain()

    listening = Listening(on_progress, deployers.append)
    result = await run_training(edge_config(*flags), listening, shutdown=stop, resume=resume)
    return result, list(cuts.values())


@pytest.mark.parametrize("times", TIMES)
async def test_they_move_with_their_blocks_while_training_goes_on(times, tmp_path):
    tuning = FineTuning(tmp_path, WIDTHS[times])
    async with running_trainer() as server:
        flags = [*tuning.flags, "deployment.cut=3", f"trainer.address={server.address}"]
        result, cuts = await moved([1, 3, 2], cut_at, *flags)
    assert cuts == [3, 1, 3, 2]
    tuning.assert_trained(result.module.state_dict())


@pytest.mark.slow
async def test_a_hundred_megabytes_of_them_move_in_both_directions(tmp_path):
    tuning = FineTuning(tmp_path, 3600)
    async with running_trainer() as server:
        flags = [*tuning.flags, "deployment.cut=3", f"trainer.address={server.address}"]
        result, cuts = await moved([1, 3, 2], cut_at, *flags)
    assert cuts == [3, 1, 3, 2]
    state = result.module.state_dict()
    assert sum(value.nbytes for name, value in state.items() if ".base." in name) > 100e6
    tuning.assert_trained(state)


@pytest.mark.parametrize("times", TIMES)
async def test_a_trainer_that_was_stopped_gets_them_again(times, tmp_path):
    tuning = FineTuning(tmp_path, WIDTHS[times])
    stored = ["checkpoints.every_steps=4", f"checkpoints.location={tmp_path / 'edge'}"]
    place = f"checkpoints.location={tmp_path / 'trainer'}"
    async with running_trainer(place) as server:
        flags = [*tuning.flags, *stored, "deployment.cut=1", f"trainer.address={server.address}"]
        with pytest.raises(StoppedError):
            await moved([], cut_at, *flags, stop_at=8)
    async with running_trainer(place, f"server.listen={server.address}"):
        result, cuts = await moved([3], cut_at, *flags, resume=Resume())
    assert cuts == [1, 3]
    tuning.assert_trained(result.module.state_dict())


@pytest.mark.slow
def test_a_trainer_that_is_killed_gets_a_hundred_megabytes_of_them_again(tmp_path):
    tuning = FineTuning(tmp_path, 3600)
    with held_port() as port:
        flags = [*tuning.flags, "compute.threads=1", "deployment.cut=1", f"trainer.address=127.0.0.1:{port}"]
        stored = ["checkpoints.every_steps=4", f"checkpoints.location={tmp_path / 'edge'}"]
        served = [
            "compute.threads=1",
            f"server.listen=127.0.0.1:{port}",
            f"checkpoints.location={tmp_path / 'trainer'}",
        ]
        with (
            heard_trainer_process(*served) as (trainer, _, _said),
            agent_process(*flags, *stored, output=tmp_path / "run") as (agent, heard),
        ):
            heard.first_event("checkpoint at every worker", least_step=8)
            trainer.kill()
            trainer.wait(30)
            with heard_trainer_process(*served):
                assert agent.wait(120) == 0, heard
                assert heard.first_event("went back to a checkpoint")["step"] >= 8
    tuning.assert_trained(load_file(tmp_path / "run" / "model.safetensors"))


@pytest.mark.parametrize("times", TIMES)
async def test_they_reach_each_trainer_of_a_chain_and_move_along_it(times, tmp_path):
    tuning = FineTuning(tmp_path, WIDTHS[times], "adapters", f"data.batch_size={BATCH_SIZE}")
    wanted = [
        {"edge": [0, 1], "near": [1, 2], "far": [2, 4]},
        {"edge": [0, 1], "far": [1, 3], "near": [3, 4]},
    ]
    documents = [
        {
            "schema": "isthmus.placement/v1",
            "workers": ["edge", "near", "far"],
            "tiles": [
                {"worker": worker, "blocks": blocks, "samples": [0, BATCH_SIZE]} for worker, blocks in tiles.items()
            ],
        }
        for tiles in wanted
    ]
    async with running_trainers() as servers:
        flags = [*tuning.flags, *flags_of("chain of three", addresses_of(servers), tmp_path)]
        result, cuts = await moved(documents, place, *flags)
    assert len(cuts) == 3
    tuning.assert_trained(result.module.state_dict())


@pytest.mark.slow
@pytest.mark.parametrize("times", WIDTHS)
@pytest.mark.parametrize("cut", [2, BLOCKS])
async def test_members_of_a_group_train_on_the_same_ones(times, cut, tmp_path):
    tuning = FineTuning(tmp_path, WIDTHS[times])
    async with running_trainer(*group_of(2)) as server:
        states = await trained(
            [
                edge_config(
                    *tuning.flags,
                    f'group={{name="line", rank={rank}}}',
                    'privacy.gradients_to=["trainer"]',
                    f"deployment.cut={cut}",
                    f"trainer.address={server.address}",
                )
                for rank in range(2)
            ]
        )
    for state in states:
        tuning.assert_trained(state)
