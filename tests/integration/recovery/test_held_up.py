"""Steps that nobody does although every trainer answers: a block never returns, as on a GPU that hangs."""

from contextlib import ExitStack

import pytest
from safetensors.torch import load_file

from edge_agent.main import app as agent_app
from shared.errors import ExitCode, IsthmusError
from tests.support.commands import command
from tests.support.group_flags import SHARD, group_of
from tests.support.killed_chain import CHOSEN, Chain
from tests.support.plain import assert_same_bits, plain_state
from tests.support.running import agent_process, edge_config, heard_trainer_process

pytestmark = pytest.mark.usefixtures("one_thread")
LEAST_SECONDS = 3
"""Time without a step and without progress that these runs take for a stall: steps take some milliseconds."""
PLACED = {"edge": "0:1", "near": "1:3", "far": "3:"}


def chosen(folder, block):
    """Flags of a run whose block hangs once `hang` is called."""
    return [
        f'model={{factory="tests.support.models.hanging:hanging", kwargs={{block={block}, file="{folder / "hang"}"}}}}',
        'data.train={factory="tests.support.samples:FlatDigits"}',
        "training.max_steps=300",
        "training.epochs=1000",
        "checkpoints.every_steps=20",
    ]


def hang(folder):
    (folder / "hang").touch()


@pytest.mark.parametrize(("block", "held_by"), [(3, "far"), pytest.param(1, "near", marks=pytest.mark.slow)])
def test_a_trainer_that_answers_and_computes_nothing_is_replaced(tmp_path, block, held_by):
    with Chain(tmp_path, 1, PLACED, keys=f"no_step_seconds={LEAST_SECONDS}") as chain:
        process, said = chain.agent(*chosen(tmp_path, block))
        said.first_event("checkpoint at every worker", least_step=40)
        hang(tmp_path)
        assert said.first_event("no step is done")["worker"] == held_by
        assert said.first_event("trainers replaced")["trainers"] == [held_by]
        assert process.wait(240) == ExitCode.OK, said
        expected = plain_state(edge_config(*CHOSEN, *chosen(tmp_path, block)))
        assert_same_bits(expected, load_file(chain.output / "model.safetensors"))


@pytest.mark.slow
def test_where_nobody_takes_over_an_operator_has_an_answer_and_the_run_ends_by_name(tmp_path):
    # The hanging thread is in nobody's replica, and no trainer may be left for another.
    with Chain(
        tmp_path,
        None,
        PLACED,
        replicas=0,
        beside=("cloud",),
        keys=f"no_step_seconds={LEAST_SECONDS}, give_up_seconds=12",
    ) as chain:
        process, said = chain.agent(*chosen(tmp_path, 3))
        said.first_event("checkpoint at every worker", least_step=40)
        hang(tmp_path)
        with pytest.raises(IsthmusError, match="trainer 'far' holds up step"):
            command(agent_app, "handover", "cloud", "--from=far", f"--control={chain.control}")
        assert "trainer 'far' holds up step" in command(agent_app, "status", f"--control={chain.control}")
        assert process.wait(240) == ExitCode.FAILED, said
        assert "trainer 'far' holds up step" in said.rest()[-1]["event"]


@pytest.mark.slow
def test_a_worker_without_a_state_is_stood_in_for_although_it_answers(tmp_path):
    frozen = 'model.frozen=["1"]'
    placed = {"edge": "0:1", "near": "1:2", "far": "2:"}
    with Chain(tmp_path, None, placed, replicas=0, beside=("cloud",), keys=f"no_step_seconds={LEAST_SECONDS}") as chain:
        process, said = chain.agent(*chosen(tmp_path, 1), frozen)
        said.first_event("checkpoint at every worker", least_step=40)
        hang(tmp_path)
        assert said.first_event("no step is done")["worker"] == "near"
        assert said.first_event("a trainer stands in for another one")["trainer"] == "cloud"
        assert process.wait(240) == ExitCode.OK, said
        expected = plain_state(edge_config(*CHOSEN, *chosen(tmp_path, 1), frozen))
        assert_same_bits(expected, load_file(chain.output / "model.safetensors"))


@pytest.mark.slow
def test_every_member_of_a_group_names_the_trainer_that_computes_nothing_and_ends(tmp_path):
    size = 2
    with ExitStack() as stack:
        trainer = heard_trainer_process(*group_of(size), "compute.threads=1", "compute.device=cpu")
        _, address, merged = stack.enter_context(trainer)
        keys = f"no_step_seconds={LEAST_SECONDS}, give_up_seconds=1"
        flags = [*chosen(tmp_path, 3), f'trainers=[{{name="near", address="{address}", {keys}}}]', SHARD]
        flags += ["training.max_steps=100000", "deployment.cut=2", 'privacy.gradients_to=["near"]']
        flags += ["compute.threads=1", "compute.device=cpu", "control.listen=none"]
        ranks = [f'group={{name="line", rank={rank}, size={size}}}' for rank in range(size)]
        members = [stack.enter_context(agent_process(*flags, rank)) for rank in ranks]
        merged.first_event("checkpoint of a group", least_step=10)
        hang(tmp_path)
        for process, said in members:
            assert said.first_event("no step is done")["worker"] == "near"
            assert process.wait(240) == ExitCode.FAILED, said
