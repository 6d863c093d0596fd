"""Failures behind another trainer come to the agent as what they are, and end or mend a run as they would between
two."""

import pytest
from safetensors.torch import load_file

from edge_agent.main import app as agent_app
from shared.errors import ExitCode
from tests.chaos.faults import Fault, Planned
from tests.support.commands import command
from tests.support.killed_chain import CHOSEN, Chain
from tests.support.plain import assert_same_bits, plain_state
from tests.support.running import edge_config

pytestmark = pytest.mark.usefixtures("one_thread")
FIRST_UPDATE = Planned("trainer", Fault.KILL_TRAINER, "shared.execution.blocks:PlacedBlocks.update", 1)
LOSSES = 6
"""More than any count of failures that ends a run."""


@pytest.mark.slow
def test_a_process_behind_another_one_may_be_lost_again_and_again_without_a_step_between(tmp_path):
    with Chain(tmp_path, None, {"edge": "0:1", "near": "1:2", "far": "2:"}, replicas=0) as chain:
        process, said = chain.agent()
        said.first_event("checkpoint at every worker", least_step=20)
        command(agent_app, "pause", f"--control={chain.control}")
        chain.kill("far")
        chain.start("far", FIRST_UPDATE)
        command(agent_app, "resume", f"--control={chain.control}")
        for _ in range(LOSSES):
            chain.wait_until_dead("far")
            chain.start("far", FIRST_UPDATE)
        chain.wait_until_dead("far")
        chain.start("far")
        process.wait(240)
        said.join()
        assert process.returncode == 0, said
        assert_same_bits(plain_state(edge_config(*CHOSEN)), load_file(chain.output / "model.safetensors"))


@pytest.mark.parametrize(
    "placed",
    [
        pytest.param({"edge": "0:1", "near": "1:2 3:", "far": "2:3"}, id="there and back", marks=pytest.mark.slow),
        pytest.param({"edge": "0:1", "near": "1:2", "far": "2:"}, id="a chain"),
    ],
)
def test_a_block_that_always_raises_behind_another_trainer_is_a_refusal_that_names_the_link(placed, tmp_path):
    with Chain(tmp_path, None, placed, replicas=0) as chain:
        raises = 'model={factory="tests.support.models.failing:raising", kwargs={block=2}}'
        process, said = chain.agent(raises, 'data.train={factory="tests.support.samples:FlatDigits"}')
        process.wait(240)
        said.join()
        assert process.returncode == ExitCode.REFUSED, said
        sentence = said.last_lines[-1]
        assert f"the trainer at 127.0.0.1:{chain.port('far')} refused" in sentence
        assert "failed with RuntimeError: the forward is not written yet" in sentence
