"""Gradients of batches whose update is still to come are lost with a process, and none of them counts twice or not at all."""

import pytest
from safetensors.torch import load_file

from tests.chaos.faults import Fault, Planned
from tests.support.killed_chain import CHOSEN, Chain
from tests.support.plain import assert_same_bits, plain_state
from tests.support.running import edge_config

pytestmark = pytest.mark.usefixtures("one_thread")
MORE = ("training.accumulate_batches=4", "training.max_steps=64")
UPDATE = "shared.execution.blocks:PlacedBlocks.update"


@pytest.mark.parametrize("calls", [10, pytest.param(3, marks=pytest.mark.slow)])
def test_a_trainer_that_dies_between_two_batches_of_an_update_changes_no_bit(calls, tmp_path):
    with Chain(tmp_path, None, {"edge": "0:1", "near": "1:2", "far": "2:"}, replicas=0) as chain:
        chain.kill("far")
        chain.start("far", Planned("trainer", Fault.KILL_TRAINER, UPDATE, calls))
        process, said = chain.agent(*MORE)
        chain.wait_until_dead("far")
        chain.start("far")
        process.wait(240)
        said.join()
        assert process.returncode == 0, said
        assert_same_bits(plain_state(edge_config(*CHOSEN, *MORE)), load_file(chain.output / "model.safetensors"))
