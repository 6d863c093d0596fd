"""A trainer that dies in a run among candidates: another one takes over, from replicas or from the store of all trainers.

Trainers and agent are processes of their own. With K = 0 what comes out is bit for bit what an undisturbed run gives.
"""

import json
import shutil
from contextlib import ExitStack

import pytest
from safetensors.torch import load_file

from edge_agent.main import app as agent_app
from shared.errors import ExitCode
from shared.training.step_log import applied_steps, check_steps
from tests.support.commands import command
from tests.support.experiments import flags
from tests.support.placement_kinds import PEERS_ALLOWED
from tests.support.plain import assert_same_bits, plain_state
from tests.support.running import agent_process, edge_config, run_agent, trainer_process

pytestmark = pytest.mark.usefixtures("one_thread")
STEPS = 400
CHOSEN = [
    *flags("cnn", "adamw"),
    f"training.max_steps={STEPS}",
    "training.epochs=40",
    "training.evaluate_every_epochs=0",
]
PATIENCE_SECONDS = 60
ONE_STORE = 'checkpoints.replicas="store"'


@pytest.fixture(scope="module")
def expected(one_thread):  # noqa: ARG001 - what it does is what is needed of it
    return plain_state(edge_config(*CHOSEN))


class Candidates:
    """Trainers without a placement, and an agent, each a process. A context."""

    def __init__(self, folder, *names, on_one_store=False, settings=()):
        """settings: flags for the agent."""
        self.folder, self._names, self._on_one_store = folder, names, on_one_store
        self._settings = settings
        self.control = f"unix:{folder}/agent.sock"
        self.output = folder / "output"
        self._stack = ExitStack()
        self._processes = {}

    def __enter__(self):
        self._addresses = {name: self._start(name) for name in self._names}
        return self

    def __exit__(self, *_):
        self._stack.close()

    def _start(self, name):
        place = self.folder / ("store" if self._on_one_store else name)
        kept = [f"checkpoints.location={place}", f"checkpoints.name={name}"]
        logs = f"checkpoints.step_log={self.folder / 'steps' / name}"
        trainer = trainer_process(PEERS_ALLOWED, *kept, logs, "compute.threads=1", "compute.device=cpu")
        self._processes[name], address = self._stack.enter_context(trainer)
        return address

    def kill(self, name):
        self._processes[name].kill()
        self._processes[name].wait()

    def flags(self):
        trainers = ", ".join(
            f'{{name="{name}", address="{address}", replace_after_seconds=1}}'
            for name, address in self._addresses.items()
        )
        return [
            *CHOSEN,
            f"trainers=[{trainers}]",
            ONE_STORE if self._on_one_store else "checkpoints.replicas=1",
            "checkpoints.every_steps=20",
            f"checkpoints.location={self.folder / 'edge'}",
            f"checkpoints.step_log={self.folder / 'steps' / 'edge'}",
            f"control.listen={self.control}",
            "compute.threads=1",
            "compute.device=cpu",
            *self._settings,
        ]

    def agent(self):
        return self._stack.enter_context(agent_process(*self.flags(), output=self.output))

    def hand_over(self, name):
        command(agent_app, "handover", name, f"--control={self.control}")

    def assert_as_undisturbed(self, agent, expected, *chain):
        """Wait for the end. chain: the trainers that had the blocks, one after the other."""
        process, said = agent
        assert process.wait(PATIENCE_SECONDS) == ExitCode.OK, said
        assert_same_bits(expected, load_file(self.output / "model.safetensors"))
        blocks = json.loads((self.output / "summary.json").read_text())["blocks"]
        assert {block["worker"] for block in blocks} == {"edge", chain[-1]}
        logs = {name: [*(self.folder / "steps" / name).glob("*.steps")] for name in ("edge", *chain)}
        assert [check_steps(log) for log in logs["edge"]] == [STEPS]
        lines = [log.read_text().splitlines() for name in chain for log in logs[name]]
        assert max(applied_steps(one).count for one in lines) == STEPS
        assert {int(line.split()[1]) for one in lines for line in one if line.startswith("applied")} == {*range(STEPS)}


def until_replicated(said, keeper):
    """Wait until a keeper keeps the replicas of a checkpoint."""
    while said.first_event("a candidate keeps replicas")["trainer"] != keeper:
        pass
    until_the_next_checkpoint(said)


def until_the_next_checkpoint(said):
    """Wait until a checkpoint is shared that was begun after the last event that was waited for."""
    said.first_event("checkpoint at every worker")  # which may have been under way
    said.first_event("checkpoint at every worker")


@pytest.mark.slow
def test_the_candidate_that_keeps_the_replicas_takes_over(tmp_path, expected):
    with Candidates(tmp_path, "here", "there", "else") as trainers:
        _, said = agent = trainers.agent()
        until_replicated(said, "there")
        trainers.kill("here")
        assert said.first_event("trainers replaced")["trainers"] == ["here"]
        trainers.assert_as_undisturbed(agent, expected, "here", "there")
        assert not [*(tmp_path / "there" / "there").iterdir()], "the session is over, and nothing of it is left"


@pytest.mark.slow
def test_a_candidate_takes_over_from_the_store_of_all_trainers(tmp_path, expected):
    with Candidates(tmp_path, "here", "there", on_one_store=True) as trainers:
        _, said = agent = trainers.agent()
        said.first_event("checkpoint at every worker", least_step=40)
        trainers.kill("here")
        assert said.first_event("trainers replaced")["trainers"] == ["here"]
        trainers.assert_as_undisturbed(agent, expected, "here", "there")
        assert [*(tmp_path / "store" / "here").iterdir()], "nobody removes what another trainer has written"


@pytest.mark.full
def test_after_a_handover_another_candidate_keeps_the_replicas(tmp_path, expected):
    with Candidates(tmp_path, "here", "there", "else") as trainers:
        _, said = agent = trainers.agent()
        until_replicated(said, "there")
        trainers.hand_over("there")
        until_replicated(said, "here")
        trainers.kill("there")
        assert said.first_event("trainers replaced")["trainers"] == ["there"]
        trainers.assert_as_undisturbed(agent, expected, "here", "there", "here")


@pytest.mark.full
def test_the_next_candidate_keeps_the_replicas_if_the_first_one_dies(tmp_path, expected):
    with Candidates(tmp_path, "here", "there", "else") as trainers:
        _, said = agent = trainers.agent()
        until_replicated(said, "there")
        trainers.kill("there")
        until_replicated(said, "else")
        trainers.kill("here")
        assert said.first_event("trainers replaced")["trainers"] == ["here"]
        trainers.assert_as_undisturbed(agent, expected, "here", "else")


@pytest.mark.slow
def test_what_the_device_keeps_goes_to_a_candidate_if_the_keeper_is_gone_too(tmp_path, expected):
    with Candidates(tmp_path, "here", "there", "else", settings=["checkpoints.every_steps=10"]) as trainers:
        _, said = agent = trainers.agent()
        until_replicated(said, "there")
        trainers.kill("there")
        said.first_event("a trainer without blocks is away; nothing waits for it")
        until_the_next_checkpoint(said)
        trainers.kill("here")
        said.first_event("trainers replaced")
        trainers.assert_as_undisturbed(agent, expected, "here", "else")


@pytest.mark.full
def test_two_that_die_one_after_the_other_are_replaced(tmp_path, expected):
    with Candidates(tmp_path, "here", "there", "else") as trainers:
        _, said = agent = trainers.agent()
        until_replicated(said, "there")
        trainers.kill("here")
        said.first_event("trainers replaced")
        until_replicated(said, "else")
        trainers.kill("there")
        assert said.first_event("trainers replaced")["trainers"] == ["there"]
        trainers.assert_as_undisturbed(agent, expected, "here", "there", "else")


@pytest.mark.full
def test_a_candidate_that_may_not_fetch_keeps_no_replicas_and_the_device_does(tmp_path, expected):
    with Candidates(tmp_path, "here") as trainers, trainer_process("compute.threads=1") as (_, strict):
        strict = f'{{name="strict", address="{strict}"}}'
        flags = [
            flag.replace("}]", f"}}, {strict}]") if flag.startswith("trainers") else flag for flag in trainers.flags()
        ]
        with agent_process(*flags, output=trainers.output) as (process, said):
            refused = said.first_event("a candidate keeps no replicas")
            assert (refused["trainer"], "peers.allowed" in refused["reason"]) == ("strict", True)
            said.first_event("checkpoint at every worker")
            assert [*(tmp_path / "edge").glob("*/*/checkpoint-*.block-*.safetensors")]
            assert process.wait(PATIENCE_SECONDS) == ExitCode.OK
        assert_same_bits(expected, load_file(trainers.output / "model.safetensors"))


@pytest.mark.slow
def test_an_agent_that_dies_after_a_replacement_goes_on_with_the_candidate(tmp_path, expected):
    with Candidates(tmp_path, "here", "there") as trainers:
        process, said = trainers.agent()
        until_replicated(said, "there")
        trainers.kill("here")
        said.first_event("trainers replaced")
        process.kill()
        process.wait()
        shutil.rmtree(trainers.output, ignore_errors=True)
        again = run_agent(
            "run", "--resume", *(f"--set={flag}" for flag in trainers.flags()), f"--output={trainers.output}"
        )
        assert again.returncode == ExitCode.OK, again.stderr
        assert_same_bits(expected, load_file(trainers.output / "model.safetensors"))
