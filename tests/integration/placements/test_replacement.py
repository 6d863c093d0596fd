"""A trainer in the middle of a chain that is killed: replaced where it stays away, and waited for where it does not.

Trainers and agent are processes of their own. With K = 0 what comes out is bit for bit what an undisturbed run gives.
"""

import asyncio
import json
from itertools import combinations

import pytest
from safetensors.torch import load_file

from edge_agent.experiment.workload import Workload
from edge_agent.planning import SCHEMA
from edge_agent.training.events import Placed, Replaced
from isthmus import run_training
from shared.errors import ExitCode
from shared.placement import held_blocks
from tests.chaos import sides
from tests.chaos.faults import Fault, Planned
from tests.support.forked import Forked
from tests.support.killed_chain import CHECKPOINT_STEPS, CHOSEN, NAMES, PLACED, STEPS, Chain
from tests.support.plain import assert_same_bits, plain_state
from tests.support.planning.chains import along
from tests.support.running import Listening, edge_config, place, run_agent

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]
WHILE_A_REPLICA_IS_SENT = "cloud_trainer.sessions.session_store:SessionStore.load_block"

ONCE_THE_SESSION_IS_OPENED_AGAIN = "edge_agent.sessions.trainer_worker:TrainerWorker.restore"


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
        said.first_event("checkpoint at every worker", least_step=30)
        chain.kill("far")
        assert said.first_event("trainers replaced")["trainers"] == ["far"]
        assert finished(chain, agent, expected) == ["edge", "near", "cloud", "cloud"]


def test_a_middle_that_comes_back_in_time_goes_on_with_its_blocks(tmp_path, expected):
    with Chain(tmp_path, replace_after_seconds=600) as chain:
        _, said = agent = chain.agent()
        said.first_event("checkpoint at every worker", least_step=30)
        chain.kill("far")
        chain.start("far")
        assert said.first_event("went back to a checkpoint")["step"] >= 30
        assert finished(chain, agent, expected) == ["edge", "near", "far", "cloud"]


@pytest.mark.full
@pytest.mark.parametrize("replace_after_seconds", [None, 600], ids=["nobody is replaced", "replaced later"])
def test_a_middle_that_is_back_at_once_with_an_empty_disk_goes_on_from_the_replicas(
    replace_after_seconds, tmp_path, expected
):
    with Chain(tmp_path, replace_after_seconds) as chain:
        _, said = agent = chain.agent()
        said.first_event("checkpoint at every worker", least_step=30)
        chain.kill("far")
        chain.lose_disk("far")
        chain.start("far")
        assert said.first_event("went back to a checkpoint")["step"] >= 30
        said.first_event("checkpoint at every worker", least_step=50)
        chain.kill("far")  # and what it has now is as good as what it had
        chain.start("far")
        assert said.first_event("went back to a checkpoint")["step"] >= 50
        assert finished(chain, agent, expected) == ["edge", "near", "far", "cloud"]


def test_a_trainer_alone_that_is_back_with_an_empty_disk_goes_on_from_what_the_device_keeps(tmp_path, expected):
    with Chain(tmp_path, None, {"edge": "0:2", "near": "2:"}) as chain:
        _, said = agent = chain.agent()
        said.first_event("checkpoint at every worker", least_step=30)
        chain.kill("near")
        chain.lose_disk("near")
        chain.start("near")
        assert said.first_event("went back to a checkpoint")["step"] >= 30
        assert finished(chain, agent, expected) == ["edge", "edge", "near", "near"]


@pytest.mark.full
def test_an_agent_that_resumes_finds_a_trainer_with_an_empty_disk_and_its_replicas(tmp_path, expected):
    with Chain(tmp_path, None) as chain:
        process, said = chain.agent()
        said.first_event("checkpoint at every worker", least_step=30)
        process.kill()
        process.wait()
        chain.kill("far")
        chain.lose_disk("far")
        chain.start("far")
        again = run_agent("run", "--resume", *(f"--set={flag}" for flag in chain.flags()), f"--output={chain.output}")
        assert again.returncode == 0, again.stderr
        assert trained(chain, expected) == ["edge", "near", "far", "cloud"]


@pytest.mark.full
def test_an_agent_that_dies_while_it_takes_a_trainer_in_again_leaves_no_place_taken(tmp_path, expected):
    with Chain(tmp_path, None, {"edge": "0:2", "near": "2:"}) as chain:
        process, said = chain.agent()
        said.first_event("checkpoint at every worker", least_step=30)
        process.kill()
        process.wait()
        chain.kill("near")
        chain.lose_disk("near")
        chain.start("near", settings=["server.max_sessions=1"])
        dies = Planned("agent", Fault.KILL_AGENT, ONCE_THE_SESSION_IS_OPENED_AGAIN, 1)
        dying = Forked(sides.agent, chain.flags(), {}, [dies], tmp_path)
        dying.wait()
        again = run_agent("run", "--resume", *(f"--set={flag}" for flag in chain.flags()), f"--output={chain.output}")
        assert again.returncode == 0, again.stderr
        assert trained(chain, expected) == ["edge", "edge", "near", "near"]


@pytest.mark.full
def test_of_a_middle_that_is_killed_while_it_sends_a_replica_the_checkpoint_before_counts(tmp_path, expected):
    with Chain(tmp_path) as chain:
        chain.kill("far")
        chain.start("far", Planned("trainer", Fault.KILL_TRAINER, WHILE_A_REPLICA_IS_SENT, 3))
        _, said = agent = chain.agent()
        back = said.first_event("went back to a checkpoint")["step"]
        assert back == last_shared(said) == 2 * CHECKPOINT_STEPS, "parts of the third are there, and its replica is not"
        assert finished(chain, agent, expected) == ["edge", "near", "cloud", "cloud"]


@pytest.mark.full
def test_where_a_replica_is_damaged_the_checkpoint_before_it_counts(tmp_path, expected):
    with Chain(tmp_path) as chain:
        _, said = agent = chain.agent()
        said.first_event("checkpoint at every worker", least_step=30)
        chain.kill("far")
        newest, before, *_ = chain.replicas("cloud")
        newest.write_bytes(newest.read_bytes()[:-1])
        back = said.first_event("went back to a checkpoint")["step"]
        assert before.name.startswith(f"checkpoint-0-{back}.")
        assert finished(chain, agent, expected) == ["edge", "near", "cloud", "cloud"]


def test_where_the_one_with_the_replica_dies_too_the_run_says_which_blocks_are_nowhere(tmp_path):
    with Chain(tmp_path) as chain:
        process, said = chain.agent()
        said.first_event("checkpoint at every worker", least_step=30)
        chain.kill("far")
        chain.kill("cloud")
        process.wait(240)
        said.join()
        assert process.returncode == ExitCode.GONE, said
        assert "cannot go on without 'cloud', 'far': there is no checkpoint" in str(said)
        assert "blocks 2:4 are nowhere" in str(said)


@pytest.mark.full
def test_an_agent_that_dies_after_a_replacement_goes_on_without_that_trainer(tmp_path, expected):
    with Chain(tmp_path) as chain:
        process, said = chain.agent()
        said.first_event("checkpoint at every worker", least_step=30)
        chain.kill("far")
        said.first_event("trainers replaced")
        process.kill()
        process.wait()
        again = run_agent("run", "--resume", *(f"--set={flag}" for flag in chain.flags()), f"--output={chain.output}")
        assert again.returncode == 0, again.stderr
        assert trained(chain, expected) == ["edge", "near", "cloud", "cloud"]


def may_dial(chain, name, *others):
    """Start a trainer again, whose operator allows these others and no more."""
    chain.kill(name)
    chain.start(name, settings=[f"peers.allowed={json.dumps([f'127.0.0.1:{chain.port(other)}' for other in others])}"])


def test_after_a_replacement_checkpoints_go_on_where_the_next_keeper_may_not_dial(tmp_path, expected):
    with Chain(tmp_path) as chain:
        may_dial(chain, "cloud", "far")
        _, said = agent = chain.agent()
        said.first_event("checkpoint at every worker", least_step=30)
        chain.kill("far")
        assert said.first_event("trainers replaced")["trainers"] == ["far"]
        kept = said.first_event("this device keeps replicas that another worker cannot")
        assert (kept["worker"], "peers.allowed" in kept["reason"]) == ("cloud", True)
        after = said.first_event("checkpoint at every worker")["step"]
        chain.kill("near")
        assert said.first_event("went back to a checkpoint")["step"] >= after
        assert finished(chain, agent, expected)[2:] == ["cloud", "cloud"]


def test_replicas_come_through_the_device_where_the_trainer_that_lacks_them_may_not_dial(tmp_path, expected):
    with Chain(tmp_path, None, {"edge": "0:1", "near": "1:2", "far": "2:"}) as chain:
        may_dial(chain, "far")
        _, said = agent = chain.agent()
        said.first_event("checkpoint at every worker", least_step=30)
        chain.kill("far")
        chain.lose_disk("far")
        may_dial(chain, "far")
        assert said.first_event("went back to a checkpoint")["step"] >= 30
        assert finished(chain, agent, expected) == ["edge", "near", "far", "far"]


def test_a_trainer_alone_is_replaced_by_the_device(tmp_path, expected):
    with Chain(tmp_path, placed={"edge": "0:2", "near": "2:"}) as chain:
        _, said = agent = chain.agent()
        said.first_event("checkpoint at every worker", least_step=30)
        chain.kill("near")
        assert said.first_event("trainers replaced")["trainers"] == ["near"]
        assert finished(chain, agent, expected) == ["edge", "edge", "edge", "edge"]


@pytest.mark.full
@pytest.mark.parametrize(
    ("disk", "later"),
    [
        ("is there", True),
        ("is lost", False),
        ("is there", False),
        ("is lost", True),
    ],
)
async def test_a_trainer_that_is_back_has_blocks_again_when_somebody_places_them_there(disk, later, tmp_path, expected):
    """later: when others have trained its blocks further."""
    far_enough, replaced, deployers = asyncio.Event(), asyncio.Event(), []

    def progressed(progress):
        if progress.steps >= 3 * CHECKPOINT_STEPS:
            far_enough.set()
        if later and replaced.is_set() and progress.steps == STEPS // 2:
            place(deployers[0], chain.document())

    with Chain(tmp_path) as chain:
        listening = Listening(progressed, deployers.append, {Replaced: lambda _event: replaced.set()})
        run = asyncio.create_task(run_training(edge_config(*chain.flags()), listening))
        await far_enough.wait()
        await chain.command("pause")
        chain.kill("far")
        await replaced.wait()
        if disk == "is lost":
            chain.lose_disk("far")
        chain.start("far")
        await chain.until_it_answers("far")
        if not later:
            (tmp_path / "placement.json").write_text(json.dumps(chain.document()))
            await chain.command("place", tmp_path / "placement.json")
        await chain.command("resume")
        result = await run
    assert [block.worker for block in result.summary.blocks] == ["edge", *NAMES]
    assert_same_bits(expected, result.module.state_dict())


async def test_the_engine_of_a_chain_takes_a_trainer_back_that_answers_again(tmp_path, expected, monkeypatch):
    far_enough, replaced, back = asyncio.Event(), asyncio.Event(), asyncio.Event()
    monkeypatch.setattr("edge_agent.adaptation.jobs.ASK_SECONDS", 0.2)
    monkeypatch.setattr("edge_agent.planning.engine.returning.LEAST_WON_SECONDS", 0.2)

    def note_placed(event):
        if replaced.is_set() and held_blocks(event.placement, "far"):
            back.set()

    def progressed(progress):
        if progress.steps >= 3 * CHECKPOINT_STEPS:
            far_enough.set()

    with Chain(tmp_path) as chain:
        engine = f'engine.profile="{chain_file(tmp_path / "chain.json")}"'
        listening = Listening(progressed, others={Replaced: lambda _event: replaced.set(), Placed: note_placed})
        run = asyncio.create_task(run_training(edge_config(*chain.flags(), engine), listening))
        await far_enough.wait()
        await chain.command("pause")
        chain.kill("far")
        await replaced.wait()
        chain.start("far")
        await back.wait()
        await chain.command("resume")
        result = await run
    assert "far" in [block.worker for block in result.summary.blocks], "it is the quickest"
    assert_same_bits(expected, result.module.state_dict())


def chain_file(path):
    """A file in which no worker is as quick as the trainer that goes away."""
    workload = Workload(edge_config(*CHOSEN))
    sizes = [1000.0] * (len(PLACED) + 1)
    slow = [[first, stop, float(stop - first)] for first, stop in combinations(range(len(PLACED) + 1), 2)]
    quick = [[first, stop, seconds / 10] for first, stop, seconds in slow]
    link = {"uplink": 1e9, "downlink": 1e9, "round_trip_seconds": 0.0}
    document = {
        "schema": SCHEMA,
        "model": "cnn",
        "batch_size": workload.config.data.batch_size,
        "blocks": [{"name": block.name, "bytes": 1000} for block in workload.chain.blocks],
        "feature_bytes": sizes,
        "gradient_bytes": sizes,
        "workers": [{"name": name, "replayed": quick if name == "far" else slow} for name in PLACED],
        "links": along(list(PLACED), [link] * len(NAMES)),
        "links_stay": True,
    }
    path.write_text(json.dumps(document))
    return path
