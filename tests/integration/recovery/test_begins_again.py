"""A trainer that owns no changing block is killed in mid-step: it begins again, nobody else goes back, and the end is the same.

Trainers and agent are processes of their own.
"""

import json

import pytest
from safetensors.torch import load_file

from tests.chaos.faults import Fault, Planned
from tests.support.killed_chain import STEPS, Chain
from tests.support.placement_kinds import ACCEPTS_INPUTS, SHARED, permitted
from tests.support.plain import assert_same_bits
from tests.support.plain_tiles import plain_tiles_state
from tests.support.running import edge_config, run_agent

pytestmark = pytest.mark.usefixtures("one_thread")
KIND = "three tiers"
POINTS = [
    ("shared.execution.blocks:PlacedBlocks.forward", 7),
    pytest.param("cloud_trainer.rpc.session_calls:SessionCalls.checkpoint_worker", 2, marks=pytest.mark.full),
    pytest.param("shared.execution.step_scheduler:StepScheduler.deliver", 12, marks=pytest.mark.slow),
    pytest.param("shared.execution.blocks:PlacedBlocks.backward", 8, marks=pytest.mark.full),
    pytest.param("shared.execution.blocks:PlacedBlocks.take_weights", 9, marks=pytest.mark.full),
    pytest.param("shared.transport.stream.duplex:Duplex.write", 30, marks=pytest.mark.full),
]
"""Points at which the far trainer is killed, each with the number of the call. At a checkpoint, all steps are done."""


class Tiers(Chain):
    """Three tiers, of which the far one shares blocks that the near one owns."""

    def __init__(self, folder, *faults):
        """faults: of the far trainer."""
        super().__init__(folder, None, {"edge": "", "near": "", "far": ""}, replicas=0)
        self._faults = faults

    def __enter__(self):
        super().__enter__()
        for name, faults in {"near": (), "far": self._faults}.items():
            self.kill(name)
            self.start(name, *faults, settings=[ACCEPTS_INPUTS])
        return self

    def back(self):
        """Wait until the far trainer is dead, and start it again."""
        self.wait_until_dead("far")
        self.start("far", settings=[ACCEPTS_INPUTS])

    def document(self, placed=None):  # noqa: ARG002 - it is that of its kind
        """See `Chain`."""
        return SHARED[KIND]

    def flags(self):
        """See `Chain`."""
        return [*super().flags(), "data.batch_size=64", *permitted(KIND, "cnn"), "output.record=true"]


@pytest.fixture(scope="module")
def expected(one_thread, tmp_path_factory):  # noqa: ARG001 - what it does is what is needed of it
    with Tiers(tmp_path_factory.mktemp("expected")) as tiers:
        return plain_tiles_state(edge_config(*tiers.flags()[:-1]))


def assert_nobody_went_back(tiers, process, said, expected):
    """Wait for the end of a run, which is that of an undisturbed one, with each step done once."""
    said.first_event("evaluated")
    process.wait(240)
    assert process.returncode == 0, said
    assert not [event for event in said.heard if event["event"] == "went back to a checkpoint"]
    assert json.loads((tiers.output / "summary.json").read_text())["steps"] == STEPS
    assert_same_bits(expected, load_file(tiers.output / "model.safetensors"))


@pytest.mark.slow
@pytest.mark.parametrize(("point", "call"), POINTS)
def test_a_killed_trainer_without_a_state_begins_again_and_nobody_goes_back(point, call, tmp_path, expected):
    with Tiers(tmp_path, Planned("trainer", Fault.KILL_TRAINER, point, call)) as tiers:
        process, said = tiers.agent()
        tiers.back()
        assert said.first_event("a worker without a state begins again; nobody goes back")["worker"] == "far"
        assert_nobody_went_back(tiers, process, said, expected)
        again = run_agent("replay", str(tiers.output))
        assert again.returncode == 0, again.stderr


class Spared(Tiers):
    """The same with one more trainer, which has no part."""

    def __init__(self, folder, *faults, permitted=True):
        """permitted: whether the other trainer may have samples as the far one may."""
        Chain.__init__(self, folder, None, {"edge": "", "near": "", "far": ""}, replicas=0, beside=("cloud",))
        self._faults, self._permitted = faults, permitted

    def __enter__(self):
        super().__enter__()
        self.kill("cloud")
        self.start("cloud", settings=[ACCEPTS_INPUTS])
        return self

    def flags(self):
        """See `Chain`."""
        to = '["near", "far", "cloud"]' if self._permitted else '["near", "far"]'
        return [*Chain.flags(self), "data.batch_size=64", *permitted(KIND, "cnn"), f"privacy.inputs_to={to}"]


KILL = Planned("trainer", Fault.KILL_TRAINER, "shared.execution.blocks:PlacedBlocks.forward", 7)


@pytest.mark.slow
@pytest.mark.parametrize(("point", "call"), POINTS)
def test_another_trainer_stands_in_for_one_without_a_state_that_stays_away(point, call, tmp_path, expected):
    with Spared(tmp_path, Planned("trainer", Fault.KILL_TRAINER, point, call)) as tiers:
        process, said = tiers.agent()
        stood_in = said.first_event("a trainer stands in for another one")
        assert (stood_in["trainer"], stood_in["worker"]) == ("cloud", "far")
        said.first_event("placement changed")  # it has the blocks by its own name from the next boundary on
        assert_nobody_went_back(tiers, process, said, expected)


@pytest.mark.full
@pytest.mark.parametrize("event", ["a trainer stands in for another one", "placement changed"])
def test_a_stand_in_that_dies_too_costs_nobody_a_step(event, tmp_path, expected):
    """It is killed while it has the name of the one that it stands in for, and once it has the blocks by its own."""
    with Spared(tmp_path, KILL) as tiers:
        process, said = tiers.agent()
        said.first_event(event)
        tiers.kill("cloud")
        tiers.back()
        assert_nobody_went_back(tiers, process, said, expected)


@pytest.mark.full
def test_a_trainer_that_may_not_have_the_samples_does_not_stand_in(tmp_path, expected):
    with Spared(tmp_path, KILL, permitted=False) as tiers:
        process, said = tiers.agent()
        refused = said.first_event("a trainer does not stand in")
        assert (refused["trainer"], refused["worker"]) == ("cloud", "far")
        tiers.back()
        said.first_event("evaluated")
        process.wait(240)
        assert process.returncode == 0, said
        assert not [event for event in said.heard if event["event"] == "a trainer stands in for another one"]
        assert_same_bits(expected, load_file(tiers.output / "model.safetensors"))


@pytest.mark.full
@pytest.mark.parametrize(
    ("more", "says"),
    [
        ("output.record=false", "a worker without a state begins again; nobody goes back"),
        ("output.record=true", "went back to a checkpoint"),
    ],
)
def test_with_staleness_it_begins_again_unless_its_order_is_to_be_recorded(more, says, tmp_path):
    with Tiers(
        tmp_path, Planned("trainer", Fault.KILL_TRAINER, "shared.execution.blocks:PlacedBlocks.forward", 40)
    ) as tiers:
        process, said = tiers.agent("deployment.staleness=2", more)
        tiers.back()
        said.first_event(says)
        process.wait(240)
        assert process.returncode == 0, said
        assert json.loads((tiers.output / "summary.json").read_text())["steps"] == STEPS
        if more == "output.record=true":
            again = run_agent("replay", str(tiers.output))
            assert again.returncode == 0, again.stderr
