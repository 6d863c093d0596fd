"""A trainer in the middle of a chain that is killed: replaced where it stays away, and waited for where it does not.

Trainers and agent are processes of their own. With K = 0 what comes out is bit for bit what an undisturbed run gives.
"""

import asyncio
import json
import shutil
from contextlib import ExitStack

import pytest
from safetensors.torch import load_file

from edge_agent import run_training
from edge_agent.experiment.workload import Workload
from edge_agent.main import app as agent_app
from edge_agent.observability.observer import RunObserver
from shared.client.config import TrainerAddressConfig
from shared.client.trainer import TrainerClient
from shared.config import LinkConfig
from shared.errors import ExitCode
from shared.placement import held_blocks
from tests.chaos import sides
from tests.chaos.faults import Fault, Planned
from tests.support.commands import command
from tests.support.experiments import flags
from tests.support.placement_kinds import PEERS_ALLOWED
from tests.support.plain import assert_same_bits, plain_state
from tests.support.running import ALLOWED, HASTE, Listening, agent_process, edge_config, held_port, run_agent

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]
STEPS, CHECKPOINT_STEPS = 160, 10
NAMES = ("near", "far", "cloud")
CHOSEN = [
    *flags("cnn", "adamw"),
    f"training.max_steps={STEPS}",
    "training.epochs=10",
    "training.evaluate_every_epochs=0",
]
PLACED = {"edge": "0:1", "near": "1:2", "far": "2:3", "cloud": "3:"}
SECONDS = 2
"""How long a trainer may be away that is to be replaced."""
WHILE_A_REPLICA_IS_SENT = "cloud_trainer.sessions.session_store:SessionStore.load_block"


class Chain:
    """Trainers and an agent in a folder, to be killed and started again. A context."""

    def __init__(self, folder, replace_after_seconds=SECONDS, placed=PLACED):
        self.folder = folder
        self._placed = placed
        self._names = [name for name in NAMES if name in placed]
        self.output = folder / "output"
        self._after = replace_after_seconds
        self._stack = ExitStack()
        self._trainers = {}

    def __enter__(self):
        self._ports = {name: self._stack.enter_context(held_port()) for name in self._names}
        for name in self._names:
            self.start(name)
        return self

    def __exit__(self, *_):
        for name in self._names:
            self.kill(name)
        self._stack.close()

    def start(self, name, *faults):
        """Start a trainer, or start it again. faults: what happens to it, and when."""
        own = [f"server.listen=127.0.0.1:{self._ports[name]}", f"checkpoints.location={self.folder / name}"]
        more = [PEERS_ALLOWED, f"models.allowed={ALLOWED}", "control.listen=none", "compute.threads=1"]
        arguments = ([*own, *more, "compute.device=cpu", HASTE], name, list(faults), self.folder)
        self._trainers[name] = sides.CONTEXT.Process(target=sides.trainer, args=arguments)
        self._trainers[name].start()

    def kill(self, name):
        self._trainers[name].kill()
        self._trainers[name].join()

    def flags(self):
        trainers = ", ".join(
            f'{{name="{name}", address="127.0.0.1:{port}", replace_after_seconds={self._after}}}'
            for name, port in self._ports.items()
        )
        placed = [f'placement.{worker}="{blocks}"' for worker, blocks in self._placed.items()]
        chosen = [*CHOSEN, *placed, f"trainers=[{trainers}]", "compute.threads=1", "compute.device=cpu"]
        chosen += [f"control.listen={self.control}", f"checkpoints.location={self.folder / 'edge'}"]
        return [*chosen, "checkpoints.replicas=1", f"checkpoints.every_steps={CHECKPOINT_STEPS}"]

    @property
    def control(self):
        return f"unix:{self.folder / 'agent.sock'}"

    def agent(self):
        return self._stack.enter_context(agent_process(*self.flags(), output=self.output))

    async def command(self, *arguments):
        """A command to the agent that runs in this process."""
        await asyncio.to_thread(command, agent_app, *map(str, arguments), f"--control={self.control}")

    async def until_it_answers(self, name):
        async with TrainerClient(TrainerAddressConfig(address=f"127.0.0.1:{self._ports[name]}"), LinkConfig()):
            pass

    def replicas(self, name):
        """The replicas on a trainer's disk, the newest first."""
        found = (self.folder / name).glob("*/*/checkpoint-*.block-*.safetensors")
        return sorted(found, key=lambda path: int(path.name.split(".")[0].rpartition("-")[2]), reverse=True)


@pytest.fixture(scope="module")
def expected(one_thread):  # noqa: ARG001 - what it does is what is needed of it
    return plain_state(edge_config(*CHOSEN))


def trained(chain, expected):
    """The worker of each block at the end of a run whose weights are right."""
    assert_same_bits(expected, load_file(chain.output / "model.safetensors"))
    summary = json.loads((chain.output / "summary.json").read_text())
    assert summary["steps"] == STEPS
    return [block["worker"] for block in summary["blocks"]]


def finished(chain, agent, expected):
    process, said = agent
    process.wait(240)
    assert process.returncode == 0, said
    return trained(chain, expected)


def last_shared(said):
    return max(event["step"] for event in said.heard if event["event"] == "checkpoint at every worker")


def test_a_middle_that_never_comes_back_is_replaced_bit_for_bit(tmp_path, expected):
    with Chain(tmp_path) as chain:
        _, said = agent = chain.agent()
        said.first_event("checkpoint at every worker", 30)
        chain.kill("far")
        assert said.first_event("trainers replaced")["trainers"] == ["far"]
        assert finished(chain, agent, expected) == ["edge", "near", "cloud", "cloud"]


def test_a_middle_that_comes_back_in_time_goes_on_with_its_blocks(tmp_path, expected):
    with Chain(tmp_path, replace_after_seconds=600) as chain:
        _, said = agent = chain.agent()
        said.first_event("checkpoint at every worker", 30)
        chain.kill("far")
        chain.start("far")
        assert said.first_event("went back to a checkpoint")["step"] >= 30
        assert finished(chain, agent, expected) == ["edge", "near", "far", "cloud"]


def test_of_a_middle_that_is_killed_while_it_sends_a_replica_the_checkpoint_before_counts(tmp_path, expected):
    with Chain(tmp_path) as chain:
        chain.kill("far")
        chain.start("far", Planned("trainer", Fault.KILL_TRAINER, WHILE_A_REPLICA_IS_SENT, 3))
        _, said = agent = chain.agent()
        back = said.first_event("went back to a checkpoint")["step"]
        assert back == last_shared(said) == 2 * CHECKPOINT_STEPS, "parts of the third are there, and its replica is not"
        assert finished(chain, agent, expected) == ["edge", "near", "cloud", "cloud"]


def test_where_a_replica_is_damaged_the_checkpoint_before_it_counts(tmp_path, expected):
    with Chain(tmp_path) as chain:
        _, said = agent = chain.agent()
        said.first_event("checkpoint at every worker", 30)
        chain.kill("far")
        newest, before, *_ = chain.replicas("cloud")
        newest.write_bytes(newest.read_bytes()[:-1])
        back = said.first_event("went back to a checkpoint")["step"]
        assert before.name.startswith(f"checkpoint-0-{back}.")
        assert finished(chain, agent, expected) == ["edge", "near", "cloud", "cloud"]


def test_where_the_one_with_the_replica_dies_too_the_run_says_which_blocks_are_nowhere(tmp_path):
    with Chain(tmp_path) as chain:
        process, said = chain.agent()
        said.first_event("checkpoint at every worker", 30)
        chain.kill("far")
        chain.kill("cloud")
        process.wait(240)
        said.join()
        assert process.returncode == ExitCode.GONE, said
        assert "cannot go on without 'cloud', 'far': there is no checkpoint" in str(said)
        assert "blocks 2:4 are nowhere" in str(said)


def test_an_agent_that_dies_after_a_replacement_goes_on_without_that_trainer(tmp_path, expected):
    with Chain(tmp_path) as chain:
        process, said = chain.agent()
        said.first_event("checkpoint at every worker", 30)
        chain.kill("far")
        said.first_event("trainers replaced")
        process.kill()
        process.wait()
        again = run_agent("run", "--resume", *(f"--set={flag}" for flag in chain.flags()), f"--output={chain.output}")
        assert again.returncode == 0, again.stderr
        assert trained(chain, expected) == ["edge", "near", "cloud", "cloud"]


def test_a_trainer_alone_is_replaced_by_the_device(tmp_path, expected):
    with Chain(tmp_path, placed={"edge": "0:2", "near": "2:"}) as chain:
        _, said = agent = chain.agent()
        said.first_event("checkpoint at every worker", 30)
        chain.kill("near")
        assert said.first_event("trainers replaced")["trainers"] == ["near"]
        assert finished(chain, agent, expected) == ["edge", "edge", "edge", "edge"]


@pytest.mark.parametrize(
    ("disk", "later"), [("is there", False), ("is there", True), ("is lost", False), ("is lost", True)]
)
async def test_a_trainer_that_is_back_has_blocks_again_when_somebody_places_them_there(
    disk, later, tmp_path, expected, monkeypatch
):
    """later: when others have trained its blocks further."""
    far_enough, replaced, deployers = asyncio.Event(), asyncio.Event(), []
    monkeypatch.setattr(RunObserver, "replaced", lambda *_: replaced.set())
    tiles = [{"worker": worker, "blocks": [index, index + 1]} for index, worker in enumerate(("edge", *NAMES))]
    document = {"schema": "isthmus.placement/v1", "workers": ["edge", *NAMES], "tiles": tiles}

    def progressed(progress):
        if progress.steps >= 3 * CHECKPOINT_STEPS:
            far_enough.set()
        if later and replaced.is_set() and progress.steps == STEPS // 2:
            deployers[0].place(document)

    with Chain(tmp_path) as chain:
        listening = Listening(progressed, deployers.append)
        run = asyncio.create_task(run_training(edge_config(*chain.flags()), listening))
        await far_enough.wait()
        await chain.command("pause")
        chain.kill("far")
        await replaced.wait()
        if disk == "is lost":
            shutil.rmtree(tmp_path / "far")
        chain.start("far")
        await chain.until_it_answers("far")
        if not later:
            (tmp_path / "placement.json").write_text(json.dumps(document))
            await chain.command("place", tmp_path / "placement.json")
        await chain.command("resume")
        result = await run
    assert [block.worker for block in result.summary.blocks] == ["edge", *NAMES]
    assert_same_bits(expected, result.module.state_dict())


async def test_the_engine_of_a_chain_takes_a_trainer_back_that_answers_again(tmp_path, expected, monkeypatch):
    far_enough, replaced, back = asyncio.Event(), asyncio.Event(), asyncio.Event()
    monkeypatch.setattr("edge_agent.adaptation.chain_decisions.RETURN_SECONDS", 0.2)
    monkeypatch.setattr(RunObserver, "replaced", lambda *_: replaced.set())
    show_placed = RunObserver.placed

    def note_placed(observer, placement, links):
        show_placed(observer, placement, links)
        if replaced.is_set() and held_blocks(placement, "far"):
            back.set()

    monkeypatch.setattr(RunObserver, "placed", note_placed)

    def progressed(progress):
        if progress.steps >= 3 * CHECKPOINT_STEPS:
            far_enough.set()

    with Chain(tmp_path) as chain:
        engine = f'engine.chain="{chain_file(tmp_path / "chain.json")}"'
        run = asyncio.create_task(run_training(edge_config(*chain.flags(), engine), Listening(progressed)))
        await far_enough.wait()
        await chain.command("pause")
        chain.kill("far")
        await replaced.wait()
        chain.start("far")
        await back.wait()
        await chain.command("resume")
        result = await run
    assert [block.worker for block in result.summary.blocks] == ["edge", *NAMES]
    assert_same_bits(expected, result.module.state_dict())


def chain_file(path):
    """A file that finds nobody as quick as the trainer that goes away."""
    workload = Workload(edge_config(*CHOSEN))
    cuts, sizes = range(len(PLACED) + 1), [1000.0] * (len(PLACED) + 1)
    slow = [[float(stop - first) if stop > first else None for stop in cuts] for first in cuts]
    quick = [[None if seconds is None else seconds / 10 for seconds in row] for row in slow]
    document = {
        "schema": "isthmus.chain/v1",
        "model": "cnn",
        "batch_size": workload.config.data.batch_size,
        "blocks": [{"name": block.name, "bytes": 1000} for block in workload.chain.blocks],
        "feature_bytes": sizes,
        "gradient_bytes": sizes,
        "encode": None,
        "min_bits": None,
        "stages": [{"name": name, "seconds": quick if name == "far" else slow} for name in PLACED],
        "links": [{"uplink": 1e9, "downlink": 1e9, "round_trip_seconds": 0.0}] * len(NAMES),
    }
    path.write_text(json.dumps(document))
    return path
