"""A handover in which one side is killed at a point by name: no step is lost and none is done twice.

Trainers and agent are processes of their own, and each is started again when it has been killed.
"""

import asyncio

import pytest
from safetensors.torch import load_file

from shared.training.step_log import applied_steps, check_steps
from tests.chaos import sides
from tests.chaos.faults import Fault, Planned
from tests.support.forked import Forked
from tests.support.killed_chain import CHOSEN, Chain
from tests.support.plain import assert_same_bits, plain_state
from tests.support.running import edge_config

pytestmark = pytest.mark.usefixtures("one_thread")
HANDED_OVER_AT, STEPS = 40, 480
LONG = f"training.max_steps={STEPS}", "training.epochs=40"
"""On a busy machine the run would otherwise be over before a handover is prepared."""
WORKER, STORED = "edge_agent.sessions.trainer_worker:TrainerWorker", "edge_agent.sessions.stored_session:StoredSession"
OFFERED, SESSION = "cloud_trainer.rpc.offered_blocks:OfferedBlocks", "cloud_trainer.sessions.session:Session"
SERVICE = "cloud_trainer.rpc.service:TrainerService"
KILLED = [
    ("edge", f"{STORED}.set_trainer_session", "admission"),
    ("edge", f"{WORKER}.offered", "ticket"),
    ("edge", f"{WORKER}.commit", "commit"),
    ("edge", f"{STORED}.set_shared", "checkpoint"),
    ("edge", f"{STORED}.forget_trainer_session", "release"),
    ("far", f"{SESSION}.join", "admission"),
    ("far", f"{OFFERED}.fetch_blocks", "fetch"),
    ("far", "cloud_trainer.sessions.worker.session_worker:SessionWorker.commit", "commit"),
    ("far", "cloud_trainer.sessions.blocks:copy_part", "checkpoint"),
    ("near", f"{OFFERED}.offer_blocks", "ticket"),
    ("near", f"{SERVICE}.download_block", "fetch"),
    ("near", f"{SERVICE}.close_session", "release"),
]
FAST = {("far", "fetch")}
SLOW = {("edge", "commit"), ("edge", "checkpoint"), ("far", "commit"), ("near", "ticket"), ("near", "fetch")}


@pytest.fixture(scope="module")
def expected(one_thread):  # noqa: ARG001 - what it does is what is needed of it
    return plain_state(edge_config(*CHOSEN, *LONG))


@pytest.mark.parametrize(
    ("killed", "point"),
    [
        pytest.param(
            killed,
            point,
            id=f"{killed} at {phase}",
            marks=() if (killed, phase) in FAST else pytest.mark.slow if (killed, phase) in SLOW else pytest.mark.full,
        )
        for killed, point, phase in KILLED
    ],
)
def test_a_side_that_is_killed_in_a_handover_costs_no_step(killed, point, tmp_path, expected):
    call = 2 if point.endswith("set_shared") else 1
    fault = Planned("agent" if killed == "edge" else "trainer", Fault.KILL_IN_MIGRATION, point, call)
    with Chain(tmp_path, None, {"edge": "0:2", "near": "2:"}, replicas=0, beside=("far",)) as chain:
        if killed != "edge":
            chain.kill(killed)
            chain.start(killed, fault)
        asyncio.run(chain.until_it_answers("far"))  # or the run might end before it is admitted
        changes = {HANDED_OVER_AT: "far", 2 * HANDED_OVER_AT: "near", 3 * HANDED_OVER_AT: "far"}
        run(chain, changes, killed, fault)
        assert (tmp_path / f"{'agent' if killed == 'edge' else killed}.fired").exists()
        assert_same_bits(expected, load_file(tmp_path / "result" / "model.safetensors"))
        logs = {name: [*(tmp_path / "steps" / name).glob("*.steps")] for name in ("edge", "near", "far")}
        assert [check_steps(log) for log in logs["edge"]] == [STEPS]
        lines = [log.read_text().splitlines() for name in ("near", "far") for log in logs[name]]
        assert max(applied_steps(one).count for one in lines) == STEPS
        assert {int(line.split()[1]) for one in lines for line in one if line.startswith("applied")} == {*range(STEPS)}


def run(chain, changes, killed, fault):
    """Run to the end. What is killed is started again, without a fault."""
    planned = [fault] if killed == "edge" else []
    agent = Forked(sides.agent, [*chain.flags(), *LONG], changes, planned, chain.folder)
    try:
        if killed != "edge":
            chain.wait_until_dead(killed)
            chain.start(killed)
        elif agent.wait(120) != 0:
            agent = Forked(sides.agent, [*chain.flags(), *LONG], changes, [], chain.folder)
        assert agent.wait(120) == 0, (chain.folder / "agent.log").read_text()[-3000:]
    finally:
        agent.kill()
