"""A trainer without blocks has no state, so whatever becomes of it costs no step, no checkpoint, no join and no start.

Trainers and agent are processes of their own; with K = 0 what comes out is bit for bit what an undisturbed run gives.
"""

import json

import pytest
from safetensors.torch import load_file

from edge_agent.main import app as agent_app
from shared.errors import RefusedError
from tests.support.commands import command
from tests.support.killed_chain import CHECKPOINT_STEPS, CHOSEN, STEPS, Chain
from tests.support.plain import assert_same_bits, plain_state
from tests.support.running import edge_config, run_agent

pytestmark = pytest.mark.usefixtures("one_thread")
NO_STEP_LOST = {
    "went back to a checkpoint",
    "the run begins again",
    "no checkpoint was taken",
    "checkpoint not written",
}
ALONE = {"edge": "0:", "near": ""}
SPARE = {"edge": "0:2", "near": "2:", "far": ""}
SPARED = {"edge": "0:2", "near": "2:3", "far": "3:"}


@pytest.fixture(scope="module")
def expected(one_thread):  # noqa: ARG001 - what it does is what is needed of it
    return plain_state(edge_config(*CHOSEN))


def finished(chain, agent, expected):
    """The worker of each block at the end of a run that has lost no step and no checkpoint."""
    process, said = agent
    process.wait(240)
    said.join()
    assert process.returncode == 0, said
    events = [*said.events()]
    assert not [event for event in events if event["event"] in NO_STEP_LOST]
    steps = [event["step"] for event in events if event["event"] == "checkpoint at every worker"]
    assert max(steps) >= STEPS - 6 * CHECKPOINT_STEPS, (
        "checkpoints are taken to the end"
    )  # one may be under way at another
    assert_same_bits(expected, load_file(chain.output / "model.safetensors"))
    return [block["worker"] for block in json.loads((chain.output / "summary.json").read_text())["blocks"]]


def place(chain, placed):
    """Have the workers run these blocks. The run stands still meanwhile, or it might end before a trainer answers."""
    file = chain.folder / "wanted.json"
    file.write_text(json.dumps(chain.document(placed)))
    command(agent_app, "pause", f"--control={chain.control}")
    try:
        return command(agent_app, "place", str(file), f"--control={chain.control}")
    finally:
        command(agent_app, "resume", f"--control={chain.control}")


def killed_costs_no_step(placed, back, replace_after_seconds, tmp_path, expected):
    idle = [*placed][-1]
    with Chain(tmp_path, replace_after_seconds, placed, replicas=0 if replace_after_seconds is None else 1) as chain:
        _, said = agent = chain.agent()
        said.first_event("checkpoint at every worker", least_step=2 * CHECKPOINT_STEPS)
        chain.kill(idle)
        if back:
            said.first_event("checkpoint at every worker", least_step=4 * CHECKPOINT_STEPS)
            chain.start(idle)
        assert idle not in finished(chain, agent, expected)


@pytest.mark.slow
def test_a_spare_that_is_killed_and_is_back_costs_no_step(tmp_path, expected):
    killed_costs_no_step(SPARE, True, None, tmp_path, expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    "placed", [pytest.param(ALONE, id="the device alone", marks=pytest.mark.full), pytest.param(SPARE, id="a spare")]
)
@pytest.mark.parametrize("back", [True, False], ids=["and is back", "and stays away"])
@pytest.mark.parametrize("replace_after_seconds", [None, 1], ids=["waited for", "replaced"])
def test_a_trainer_without_blocks_that_is_killed_costs_no_step(placed, back, replace_after_seconds, tmp_path, expected):
    killed_costs_no_step(placed, back, replace_after_seconds, tmp_path, expected)


@pytest.mark.slow
def test_a_trainer_that_keeps_replicas_and_is_killed_is_followed_by_another_keeper(tmp_path, expected):
    with Chain(tmp_path, None, SPARE) as chain:
        _, said = agent = chain.agent()
        said.first_event("checkpoint at every worker", least_step=2 * CHECKPOINT_STEPS)
        chain.kill("far")
        assert finished(chain, agent, expected) == ["edge", "edge", "near", "near"]


@pytest.mark.full
def test_a_session_that_a_trainer_without_blocks_has_freed_costs_no_step_and_is_there_again_when_it_is_wanted(
    tmp_path, expected
):
    with Chain(tmp_path, None, SPARE, replicas=0) as chain:
        chain.kill("far")
        chain.start("far", settings=["server.session_idle_seconds=0.5"])
        _, said = agent = chain.agent()
        while "session freed: nobody used it" not in [event["event"] for event in chain.log("far")]:
            said.first_event("checkpoint at every worker")
        place(chain, SPARED)
        assert finished(chain, agent, expected) == ["edge", "edge", "near", "far"]


@pytest.mark.slow
@pytest.mark.parametrize("disk", [pytest.param("is there", marks=pytest.mark.full), "is lost"])
def test_a_spare_that_was_killed_and_is_back_takes_blocks_when_it_is_wanted(disk, tmp_path, expected):
    with Chain(tmp_path, None, SPARE, replicas=0) as chain:
        _, said = agent = chain.agent()
        said.first_event("checkpoint at every worker", least_step=2 * CHECKPOINT_STEPS)
        chain.kill("far")
        if disk == "is lost":
            chain.lose_disk("far")
        chain.start("far")
        place(chain, SPARED)
        assert finished(chain, agent, expected) == ["edge", "edge", "near", "far"]


@pytest.mark.full
def test_blocks_for_a_spare_that_is_away_stay_where_they_are(tmp_path, expected):
    with Chain(tmp_path, None, SPARE, replicas=0) as chain:
        _, said = agent = chain.agent()
        said.first_event("checkpoint at every worker", least_step=2 * CHECKPOINT_STEPS)
        chain.kill("far")
        with pytest.raises(RefusedError, match="is away"):
            place(chain, SPARED)
        assert finished(chain, agent, expected) == ["edge", "edge", "near", "near"]


@pytest.mark.slow
def test_a_trainer_that_has_given_all_its_blocks_away_is_not_needed_any_more(tmp_path, expected):
    with Chain(tmp_path, None, {"edge": "0:2", "near": "2:"}, replicas=0) as chain:
        _, said = agent = chain.agent()
        said.first_event("checkpoint at every worker", least_step=2 * CHECKPOINT_STEPS)
        place(chain, ALONE)
        said.first_event("placement changed")
        chain.kill("near")
        assert finished(chain, agent, expected) == ["edge"] * 4


@pytest.mark.full
@pytest.mark.parametrize("placed", [ALONE, SPARE], ids=["the device alone", "a spare"])
def test_a_run_is_resumed_though_a_trainer_without_blocks_is_away(placed, tmp_path, expected):
    idle = [*placed][-1]
    with Chain(tmp_path, None, placed, replicas=0) as chain:
        process, said = chain.agent()
        said.first_event("checkpoint at every worker", least_step=2 * CHECKPOINT_STEPS)
        process.kill()
        process.wait()
        chain.kill(idle)
        again = run_agent("run", "--resume", *(f"--set={flag}" for flag in chain.flags()), f"--output={chain.output}")
        assert again.returncode == 0, again.stderr
        assert "went back to a checkpoint" in again.stderr
        assert_same_bits(expected, load_file(chain.output / "model.safetensors"))


@pytest.mark.slow
def test_a_run_begins_though_a_trainer_without_blocks_is_away(tmp_path, expected):
    with Chain(tmp_path, None, SPARE, replicas=0) as chain:
        chain.kill("far")
        assert finished(chain, chain.agent(), expected) == ["edge", "edge", "near", "near"]
