"""A run that chooses among several trainers by itself: one that becomes slow is left for another, and operators go before.

Trainers and agent are processes of their own. With K = 0 what comes out is bit for bit what an undisturbed run gives.
"""

import json
from contextlib import ExitStack, contextmanager

import pytest
from safetensors.torch import load_file

from edge_agent.main import app as agent_app
from edge_agent.planning import profile_to_json
from shared.errors import ExitCode
from shared.training.step_log import check_steps
from tests.support.commands import assert_one_sentence, command
from tests.support.experiments import OPTIMIZERS, profile_of
from tests.support.placement_kinds import PEERS_ALLOWED
from tests.support.plain import assert_same_bits, plain_state
from tests.support.running import agent_process, edge_config, run_agent, trainer_process

pytestmark = pytest.mark.usefixtures("one_thread")
STEPS = 1000
SLOW_SECONDS = 0.05
"""Seconds of a step at a slow trainer: some twenty times as long as elsewhere."""
PATIENCE_SECONDS = 120


class Several:
    """Trainers, and what an agent needs to choose among them."""

    def __init__(self, folder, trainers):
        self.folder, self.trainers = folder, trainers
        self.control = f"unix:{folder}/agent.sock"
        self.paces = folder / "paces"
        self.paces.mkdir()

    @property
    def model(self):
        """The model and its data."""
        return [
            'model.factory="tests.support.models.paced:paced_by_process"',
            f'model.kwargs={{folder="{self.paces}"}}',
            'data.train={factory="tests.support.samples:FlatDigits"}',
            f"training.optimizer={OPTIMIZERS['adamw']}",
            f"training.max_steps={STEPS}",
            "training.epochs=100",
            "training.evaluate_every_epochs=0",
        ]

    def flags(self, *more, alone_seconds=None):
        """A run that may choose: K = 0, and no codec that loses anything. alone_seconds: see `profile_of`."""
        profile = self.folder / "profile.json"
        profile.write_text(profile_to_json(profile_of(edge_config(*self.model), alone_seconds)))
        each = (f'{{name="{name}", address="{address}"}}' for name, (_, address) in self.trainers.items())
        return [
            *self.model,
            f"trainers=[{', '.join(each)}]",
            f'engine.profile="{profile}"',
            "engine.bits=[32]",
            "engine.max_staleness=0",
            f"control.listen={self.control}",
            f"checkpoints.location={self.folder / 'kept'}",
            f"checkpoints.step_log={self.folder / 'steps'}",
            "checkpoints.every_steps=50",
            *more,
        ]

    def slow_down(self, name, seconds=SLOW_SECONDS):
        """Have a trainer take so long for each step from now on."""
        process, _ = self.trainers[name]
        written = self.folder / "pace"
        written.write_text(str(seconds))
        written.replace(self.paces / str(process.pid))

    def ask(self, *arguments):
        """Give the agent a command, and return what it answers."""
        return json.loads(command(agent_app, *arguments, f"--control={self.control}", "--json"))

    def holder(self):
        """Return the trainer that has blocks now: on a busy machine it may be another one than in the beginning."""
        (name,) = {worker["name"] for worker in self.ask("status")["status"]["workers"]} - {"edge"}
        return name

    def check_exact(self):
        """Hold the results against an undisturbed run."""
        assert [check_steps(log) for log in (self.folder / "steps").glob("*-edge.steps")] == [STEPS]
        assert_same_bits(plain_state(edge_config(*self.model)), load_file(self.folder / "model.safetensors"))


@contextmanager
def several(folder, **given):
    """Trainers by name, in this order, each with flags of its own."""
    with ExitStack() as stack:
        trainers = {name: stack.enter_context(trainer_process(*flags)) for name, flags in given.items()}
        yield Several(folder, trainers)


def pair(folder, here=(PEERS_ALLOWED,), there=(PEERS_ALLOWED,)):
    return several(folder, here=here, there=there)


def trainer_at_first(said):
    (name,) = said.first_event("session opened")["at_trainers"]
    return name


def left(said, trainer):
    """Wait until a trainer is to be left for another one, and return that choice."""
    while (chosen := said.first_event("choosing another trainer"))["today"] != trainer:
        pass
    return chosen


@pytest.mark.slow
def test_a_trainer_that_becomes_slow_is_left_for_another_and_no_bit_changes(tmp_path):
    with (
        pair(tmp_path) as two,
        agent_process(*two.flags(), output=tmp_path) as (process, said),
    ):
        said.first_event("checkpoint at every worker")
        first = two.holder()
        (other,) = {"here", "there"} - {first}
        two.slow_down(first)
        assert left(said, first)["wanted"] == other
        said.first_event("placement changed")
        status = two.ask("status")["status"]
        assert status["chosenBy"] == "choice"
        assert {one["name"] for one in status["candidates"]} == {"here", "there"}
        assert status["candidates"][0]["name"] == other
        listed = {one["name"]: one["secondsPerStep"] for one in two.ask("trainers")["trainers"]}
        assert listed[other] < listed[first]
        assert process.wait(PATIENCE_SECONDS) == ExitCode.OK
        said.join()
        assert "went back to a checkpoint" not in {event["event"] for event in said.rest()}
        assert any(event["event"] == "the engine goes on with another trainer" for event in said.heard)
        two.check_exact()


@pytest.mark.full
def test_where_all_trainers_are_slow_the_device_trains_alone(tmp_path):
    with (
        pair(tmp_path) as two,
        agent_process(*two.flags(alone_seconds=0.01), output=tmp_path) as (process, said),
    ):
        said.first_event("checkpoint at every worker")
        first = two.holder()
        for name in two.trainers:
            two.slow_down(name)
        choices = [left(said, first)]
        while choices[-1]["wanted"] != "edge":
            choices.append(said.first_event("choosing another trainer"))
        assert len(choices) <= 2, "each of them is tried once"
        assert process.wait(PATIENCE_SECONDS) == ExitCode.OK
        blocks = json.loads((tmp_path / "summary.json").read_text())["blocks"]
        assert {block["worker"] for block in blocks} == {"edge"}
        two.check_exact()


@pytest.mark.slow
def test_a_trainer_that_stops_is_left_for_the_fastest_not_for_the_first_of_the_list(tmp_path):
    slow, quick = "slow", {"here", "there"}
    with (
        several(tmp_path, **dict.fromkeys((slow, "here", "there"), (PEERS_ALLOWED,))) as three,
        ExitStack() as stack,
    ):
        three.slow_down(slow)
        process, said = stack.enter_context(agent_process(*three.flags(), output=tmp_path))
        while True:  # until it has been measured how slow it is, and another one trains
            said.first_event("checkpoint at every worker")
            status = three.ask("status")["status"]
            ranked, now = [one["name"] for one in status.get("candidates", ())], three.holder()
            if len(ranked) == 3 and ranked[-1] == slow and now != slow:
                break
        three.trainers[now][0].terminate()
        said.first_event("a trainer is about to stop")
        assert said.first_event("session opened at one more trainer")["trainer"] in quick - {now}
        assert process.wait(PATIENCE_SECONDS) == ExitCode.OK
        three.check_exact()


@pytest.mark.full
def test_edgemove_moves_the_cut_and_leaves_a_trainer_that_becomes_slow(tmp_path):
    policy = 'choice.policy="edgemove"', "choice.cycle_steps=25", "checkpoints.every_steps=10"
    with pair(tmp_path) as two, ExitStack() as stack:
        for name in two.trainers:  # so that the run lasts for some cycles
            two.slow_down(name, 0.01)
        process, said = stack.enter_context(agent_process(*two.flags(*policy), output=tmp_path))
        said.first_event("moving the cut")
        first = two.holder()
        seconds = 0.01
        heard = "checkpoint at every worker", "choosing another trainer"
        while (event := said.first_event(*heard))["event"] == heard[0]:
            # Algorithm 3 looks for another trainer once a cycle takes longer than all before: each does.
            seconds += 0.005
            two.slow_down(first, seconds)
        assert event["today"] == first
        assert process.wait(PATIENCE_SECONDS) == ExitCode.OK
        two.check_exact()


@pytest.mark.full
def test_the_device_trains_alone_no_longer_than_it_is_pinned_to_where_it_may_not(tmp_path):
    with (
        pair(tmp_path) as two,
        agent_process(
            *two.flags(
                "engine.allow_edge_only=false", "training.max_steps=100000", "training.epochs=10000", alone_seconds=0.01
            ),
            output=tmp_path,
        ) as (_, said),
    ):
        said.first_event("checkpoint at every worker")
        two.ask("pin", "--cut", "4")
        while (status := two.ask("status")["status"])["deployment"]["edgeBlocks"] < 4:
            said.first_event("checkpoint at every worker")
        assert status["pinned"] == {"cut": 4}
        two.ask("release")
        assert said.first_event("choosing another trainer")["today"] == "edge"
        said.first_event("placement changed")


@pytest.mark.full
def test_a_pinned_trainer_stays_however_slow_until_its_release(tmp_path):
    with (
        pair(tmp_path) as two,
        agent_process(*two.flags(), output=tmp_path) as (process, said),
    ):
        said.first_event("checkpoint at every worker")
        first = two.holder()
        two.slow_down(first)
        two.ask("pin", "--trainer", first)
        # Its ranking shows that the other one would be faster.
        while two.ask("status")["status"].get("candidates", [{"name": first}])[0]["name"] == first:
            said.first_event("checkpoint at every worker")
        said.first_event("checkpoint at every worker")
        assert two.ask("status")["status"]["pinned"] == {"trainer": first}
        choices = [event for event in said.heard if event["event"] == "choosing another trainer"]
        assert not [choice for choice in choices if choice["today"] == first]
        two.ask("release", "--trainer")
        left(said, first)
        assert process.wait(PATIENCE_SECONDS) == ExitCode.OK
        two.check_exact()


@pytest.mark.full
def test_the_policy_fixed_goes_by_command_alone_and_the_engine_goes_along(tmp_path):
    with (
        pair(tmp_path) as two,
        agent_process(*two.flags('choice.policy="fixed"', "training.max_steps=600"), output=tmp_path) as (
            process,
            said,
        ),
    ):
        assert trainer_at_first(said) == "here"
        two.slow_down("here")
        for _ in range(2):
            said.first_event("checkpoint at every worker")
        assert "candidates" not in two.ask("status")["status"]
        two.ask("handover", "there")
        assert said.first_event("the engine goes on with another trainer")["trainer"] == "there"
        assert process.wait(PATIENCE_SECONDS) == ExitCode.OK
        said.join()
        events = {event["event"] for event in said.rest()}
        assert not events & {"choosing another trainer", "candidate measured"}
        blocks = json.loads((tmp_path / "summary.json").read_text())["blocks"]
        assert {block["worker"] for block in blocks} == {"edge", "there"}


@pytest.mark.slow
def test_a_candidate_that_does_not_allow_the_model_is_left_out_by_name(tmp_path):
    endless = "training.max_steps=100000", "training.epochs=10000"
    with (
        pair(tmp_path, there=("models.allowed=[]",)) as two,
        agent_process(*two.flags(*endless), output=tmp_path) as (_, said),
    ):
        left_out = said.first_event("a candidate is left out")
        assert (left_out["trainer"], "models.allowed" in left_out["reason"]) == ("there", True)


@pytest.mark.full
def test_a_candidate_that_refuses_a_handover_is_left_out_by_name(tmp_path):
    with (
        pair(tmp_path, (), ()) as two,  # neither may dial the other
        agent_process(*two.flags("training.max_steps=250"), output=tmp_path) as (process, said),
    ):
        first = trainer_at_first(said)
        (other,) = {"here", "there"} - {first}
        two.slow_down(first)
        left_out = said.first_event("a candidate is left out")
        assert (left_out["trainer"], "peers.allowed" in left_out["reason"]) == (other, True)
        assert process.wait(PATIENCE_SECONDS) == ExitCode.OK


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (['choice.policy="nearest"'], 'choice.policy is "nearest"; it must be one of best, edgemove, fixed'),
        (["choice.cycle_steps=0"], "choice.cycle_steps is 0"),
        (["choice.probe_bytes_per_minute=-1"], "choice.probe_bytes_per_minute is -1"),
        (['choice.policy="best"'], 'choice.policy is "best", which chooses among several [[trainers]]'),
        (
            ['choice.policy="best"', 'trainers=[{name="a", address="a:1"}, {name="b", address="b:1"}]'],
            'choice.policy is "best" and engine.profile is left out',
        ),
    ],
)
def test_bad_keys_of_the_choice_are_one_sentence(keys, expected):
    done = run_agent("run", *(f"--set={key}" for key in keys))
    assert_one_sentence("edge-agent", done, ExitCode.CONFIG, expected)
