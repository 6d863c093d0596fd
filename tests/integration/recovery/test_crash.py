"""Invariant 1 across deaths: whichever process is killed, what comes out is bit for bit what an undisturbed run gives."""

import json
import shutil
import signal
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from edge_agent.sessions.kills import kills
from edge_agent.training.history import read_history
from shared.checkpoint import seal, unseal
from shared.errors import ExitCode
from tests.chaos.faults import Fault, Planned, Saboteur
from tests.support import plain_history
from tests.support.commands import spoken
from tests.support.experiments import flags
from tests.support.forked import program
from tests.support.killed_workers import Workers
from tests.support.placement_kinds import flags_of
from tests.support.plain import assert_same_bits, plain_state
from tests.support.plain_changed import plain_changed
from tests.support.plain_recalled import plain_recalled
from tests.support.running import edge_config, held_port, run_agent

STEPS = 250
CHOSEN = [
    *flags("cnn", "adamw"),
    f"training.max_steps={STEPS}",
    "training.epochs=10",
    "training.evaluate_every_epochs=0",
]
RECALLED = [
    'model.frozen=["stem", "layers.0"]',
    'model.frozen_mode="eval"',
    "deployment.recall=true",
    'deployment.codec="uniform8"',
]
CHANGED = ['deployment.changes="topk1"', 'deployment.codec="uniform8"', "deployment.changes_above=0.02"]


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def undisturbed():
    """The rows and the weights of the run that nothing disturbs."""
    return plain_history.plain_run(edge_config(*CHOSEN), {STEPS}.__contains__)


@pytest.fixture(scope="module")
def rows(undisturbed):
    return undisturbed[0]


@pytest.fixture(scope="module")
def expected(undisturbed):
    return undisturbed[1]


@pytest.fixture
def pair(tmp_path):
    """An agent and one trainer."""
    with held_port() as port:
        address = f"127.0.0.1:{port}"
        pair = Workers(tmp_path, {"trainer": address}, [f"trainer.address={address}", "deployment.cut=2"], CHOSEN)
        yield pair
        pair.close()


@pytest.fixture
def chain(tmp_path):
    """An agent and two trainers, one behind the other."""
    with held_port() as near, held_port() as far:
        addresses = {"near": f"127.0.0.1:{near}", "far": f"127.0.0.1:{far}"}
        chain = Workers(tmp_path, addresses, flags_of("chain of three", addresses, tmp_path), CHOSEN)
        yield chain
        chain.close()


def finished(pair, agent, expected):
    out, err = agent.ended(240)
    assert agent.process.returncode == 0, err
    assert out.splitlines()[-1] == f"summary: {pair.output / 'summary.json'}"
    assert_same_bits(expected, load_file(pair.output / "model.safetensors"))
    assert json.loads((pair.output / "summary.json").read_text())["steps"] == STEPS
    assert not list((pair.folder / "edge" / "edge-agent").iterdir()), "a finished session leaves nothing to resume"
    return err


@pytest.mark.slow
def test_an_agent_that_is_killed_goes_on_where_both_sides_were(pair, expected, rows):
    pair.trainer()
    agent = pair.agent()
    agent.until("checkpoint at every worker", at_least=21)
    agent.end()
    ours = f"--set=checkpoints.location={pair.folder / 'edge'}"
    # With a control address it would ask whichever agent of this machine runs.
    listed = run_agent("sessions", ours, "--set=control.listen=none", environ={"COLUMNS": "200"})
    assert "can be resumed" in listed.stdout, listed
    again = pair.agent()
    assert again.until("went back to a checkpoint")["step"] >= 14
    finished(pair, again, expected)
    assert plain_history.of(read_history(pair.output)) == rows


@pytest.mark.slow
def test_a_trainer_that_is_killed_comes_back_and_the_agent_with_it(pair, expected):
    trainer = pair.trainer()
    agent = pair.agent()
    agent.until("checkpoint at every worker", at_least=28)
    trainer.end()
    agent.until("trainer away; trying again")
    pair.trainer()
    assert agent.until("went back to a checkpoint")["step"] >= 28
    finished(pair, agent, expected)


@pytest.mark.slow
@pytest.mark.parametrize("killed", ["agent", "trainer"])
def test_features_that_are_recalled_are_sent_anew_after_a_death(pair, killed):
    trainer = pair.trainer()
    agent = pair.agent(*RECALLED)
    agent.until("checkpoint at every worker", at_least=60)  # in the second epoch, in which few features cross
    if killed == "agent":
        agent.end()
        agent = pair.agent(*RECALLED)
    else:
        trainer.end()
        agent.until("trainer away; trying again")
        trainer = pair.trainer()
    step = agent.until("went back to a checkpoint")["step"]
    assert step >= 60
    assert trainer.until("features are kept from this step on", at_least=1)["step"] == step
    finished(pair, agent, plain_recalled(edge_config(*CHOSEN, *RECALLED), {0: 2, step: 2}))


@pytest.mark.slow
def test_a_device_that_recalls_by_itself_computes_features_anew_after_its_death(tmp_path):
    alone = Workers(tmp_path, {}, ["trainers=[]"], CHOSEN)
    try:
        agent = alone.agent(*RECALLED)
        agent.until("checkpoint at every worker", at_least=60)
        agent.end()
        agent = alone.agent(*RECALLED)
        step = agent.until("went back to a checkpoint")["step"]
        assert step >= 60
        plain = [flag for flag in RECALLED if "codec" not in flag]
        finished(alone, agent, plain_recalled(edge_config(*CHOSEN, *plain, "trainers=[]"), {0: 2, step: 2}))
    finally:
        alone.close()


@pytest.mark.slow
@pytest.mark.parametrize("killed", ["agent", "trainer"])
def test_features_of_which_changes_are_sent_come_back_with_a_checkpoint(pair, killed):
    trainer = pair.trainer()
    agent = pair.agent(*CHANGED)
    agent.until("checkpoint at every worker", at_least=60)  # in the second epoch, in which changes cross
    for name in ("edge", "trainer"):
        assert len([*(pair.folder / name).rglob("*.increment.safetensors")]) > 1, (
            "each checkpoint has what changed before it"
        )
    if killed == "agent":
        agent.end()
        agent = pair.agent(*CHANGED)
    else:
        trainer.end()
        agent.until("trainer away; trying again")
        pair.trainer()
    assert agent.until("went back to a checkpoint")["step"] >= 60
    finished(pair, agent, plain_changed(edge_config(*CHOSEN, *CHANGED), {0: 2}))


@pytest.mark.slow
def test_every_worker_of_a_chain_is_killed_in_turn(chain, expected, rows):
    trainers = {name: chain.trainer(name) for name in chain.addresses}
    agent, begins = chain.agent(), 0
    for name, trainer in trainers.items():
        kept = agent.until("checkpoint at every worker", at_least=begins + 14)["step"]
        trainer.end()
        agent.until("trainer away; trying again")
        chain.trainer(name)
        begins = agent.until("went back to a checkpoint")["step"]
        assert begins >= kept
    kept = agent.until("checkpoint at every worker", at_least=begins + 14)["step"]
    agent.end()
    again = chain.agent()
    assert again.until("went back to a checkpoint")["step"] >= kept
    finished(chain, again, expected)
    assert plain_history.of(read_history(chain.output)) == rows


@pytest.mark.slow
def test_the_best_weights_outlive_both_sides(pair, expected):
    best = ["training.evaluate_every_steps=25", "training.keep_best={}"]
    trainer = pair.trainer()
    agent = pair.agent(*best)
    step = agent.until("these weights are the best so far", at_least=50)["step"]
    trainer.end()
    agent.until("trainer away; trying again")
    pair.trainer()
    agent.until("these weights are the best so far", at_least=step + 25)
    agent.end()
    again = pair.agent(*best)
    finished(pair, again, expected)
    found = json.loads((pair.output / "summary.json").read_text())["best_step"]
    rows = [row for row in read_history(pair.output) if row.test_loss is not None]
    assert found == min(rows, key=lambda row: row.test_loss).step
    at_best = plain_state(edge_config(*CHOSEN, f"training.max_steps={found}"))
    assert_same_bits(at_best, load_file(pair.output / "best.safetensors"))


@pytest.mark.full
@pytest.mark.parametrize("cut", [4, 2])
def test_both_killed(pair, expected, cut):
    trainer = pair.trainer()
    agent = pair.agent(f"deployment.cut={cut}")
    agent.until("checkpoint at every worker", at_least=14)
    trainer.end()
    agent.end()
    pair.trainer()
    again = pair.agent(f"deployment.cut={cut}")
    assert again.until("went back to a checkpoint")["step"] >= 7
    finished(pair, again, expected)


@pytest.mark.full
def test_killed_before_anything_was_kept(pair, expected):
    trainer = pair.trainer()
    agent = pair.agent("checkpoints.every_steps=1000")
    agent.until("session opened")
    trainer.end()
    pair.trainer()
    agent.until("the run begins again")
    finished(pair, agent, expected)


def killed_as_it_opens_again(folder, *arguments):
    """A program that is killed when it asks for its second session."""
    Saboteur(
        [Planned("agent", Fault.KILL_AGENT, "edge_agent.sessions.opening:opening_request", 2)], Path(folder, "fired")
    )
    program(*arguments)


@pytest.mark.slow
def test_killed_while_the_run_begins_again(pair, tmp_path, expected):
    """All that tells of the kill is there, and nothing that the lost session had written."""
    trainer = pair.trainer()
    agent = pair.agent("checkpoints.every_steps=1000", target=partial(killed_as_it_opens_again, tmp_path))
    trainer.until("worker attached")
    (session,) = (pair.folder / "edge" / "edge-agent").iterdir()
    (session / "recalled").mkdir()
    (session / "recalled" / "features").touch()
    trainer.end()
    pair.trainer()
    assert agent.process.wait(60) == -signal.SIGKILL
    assert unseal((session / "session.json").read_bytes())["shared"] is None
    assert not (session / "recalled").exists()
    proc = tmp_path / "proc"
    (proc / "sys/kernel/random").mkdir(parents=True)
    shutil.copy("/proc/sys/kernel/random/boot_id", proc / "sys/kernel/random")
    (proc / "vmstat").write_text(f"oom_kill {2**40}\n")
    (kill,) = kills(session, proc)
    assert kill.for_memory
    again = pair.agent("checkpoints.every_steps=1000")
    again.until("the run begins again")
    finished(pair, again, expected)


@pytest.mark.full
def test_a_damaged_newest_checkpoint_on_either_side(pair, expected):
    trainer = pair.trainer()
    agent = pair.agent()
    agent.until("checkpoint at every worker", at_least=28)
    agent.end(signal.SIGTERM)  # so that both have its last one; killed, it might have written another already
    trainer.end()
    edges = newest(pair.folder / "edge" / "edge-agent")
    edges.write_bytes(edges.read_bytes()[:-1])
    cloud = newest(pair.folder / "trainer" / "cloud-trainer")
    cloud.write_bytes(b"")
    pair.trainer()
    again = pair.agent()
    again.until("went back to a checkpoint")
    damaged = [event for event in again.heard if event["event"].startswith("checkpoint damaged")]
    assert len(damaged) == 1
    finished(pair, again, expected)


@pytest.mark.full
def test_a_checkpoint_that_does_not_say_when_was_evaluated(pair, expected):
    trainer = pair.trainer()
    agent = pair.agent()
    agent.until("checkpoint at every worker", at_least=10)
    trainer.end()
    agent.end()
    for manifest in (pair.folder / "edge" / "edge-agent").glob("*/checkpoint-*.json"):
        said = unseal(manifest.read_bytes())
        del said["facts"]["evaluated_step"]
        manifest.write_bytes(seal(said))
    pair.trainer()
    again = pair.agent()
    again.until("went back to a checkpoint")
    finished(pair, again, expected)


def newest(folder):
    files = list(folder.glob("*/checkpoint-*.safetensors"))
    return max(files, key=lambda path: int(path.stem.rpartition("-")[2]))


@pytest.mark.slow
def test_sigterm_leaves_an_agent_to_be_resumed_at_the_very_step(pair, expected):
    pair.trainer()
    agent = pair.agent()
    agent.until("checkpoint at every worker", at_least=14)
    err = agent.end(signal.SIGTERM)
    assert agent.process.returncode == ExitCode.TERMINATED, err
    said = spoken(err.splitlines()[-1])
    assert said.startswith("edge-agent: stopped by SIGTERM at step ")
    assert said.endswith("` goes on")
    stopped = int(said.split()[6])
    again = pair.agent()
    assert again.until("went back to a checkpoint")["step"] == stopped >= 14, "no step was lost"
    finished(pair, again, expected)


@pytest.mark.full
def test_a_trainer_that_is_redeployed_loses_no_step(pair, expected):
    trainer = pair.trainer()
    agent = pair.agent()
    agent.until("checkpoint at every worker", at_least=14)
    trainer.end(signal.SIGTERM)
    assert trainer.process.returncode == 0
    agent.until("a trainer is about to stop")
    agent.until("trainer away; trying again")
    *_, last = (event["step"] for event in agent.heard if event["event"] == "checkpoint at every worker")
    pair.trainer()
    assert agent.until("went back to a checkpoint")["step"] == last
    finished(pair, agent, expected)


@pytest.mark.full
def test_a_second_agent_is_refused_and_the_first_goes_on(pair, expected):
    pair.trainer()
    agent = pair.agent()
    agent.until("checkpoint at every worker", at_least=7)
    session = next((pair.folder / "edge" / "edge-agent").iterdir()).name
    agent.process.send_signal(signal.SIGSTOP)  # or it might be done before the second has begun
    done = run_agent(*pair.agent_arguments(), f"--session={session}")
    agent.process.send_signal(signal.SIGCONT)
    assert done.returncode == ExitCode.CONFIG, done
    assert "another process has it open" in done.stderr
    finished(pair, agent, expected)
