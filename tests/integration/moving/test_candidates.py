"""Several trainers without a placement are candidates for one cut: a run begins with the first that answers.

Trainers and agent are processes of their own. With K = 0 what comes out is bit for bit what an undisturbed run gives.
"""

import json
import time

import pytest
from safetensors.torch import load_file

from edge_agent.main import app as agent_app
from shared.errors import ExitCode
from tests.support.commands import assert_one_sentence, command
from tests.support.experiments import flags
from tests.support.placement_kinds import PEERS_ALLOWED
from tests.support.plain import assert_same_bits, plain_state
from tests.support.running import agent_process, edge_config, held_port, run_agent, trainer_process

pytestmark = pytest.mark.usefixtures("one_thread")
STEPS = 300
CHOSEN = [
    *flags("cnn", "adamw"),
    f"training.max_steps={STEPS}",
    "training.epochs=40",
    "training.evaluate_every_epochs=0",
]
PATIENCE_SECONDS = 60


@pytest.fixture(scope="module")
def expected(one_thread):  # noqa: ARG001 - what it does is what is needed of it
    return plain_state(edge_config(*CHOSEN))


def candidates(**addresses):
    each = (f'{{name="{name}", address="{address}"}}' for name, address in addresses.items())
    return f"trainers=[{', '.join(each)}]"


def workers(folder):
    return [block["worker"] for block in json.loads((folder / "summary.json").read_text())["blocks"]]


@pytest.mark.slow
def test_one_that_is_away_delays_neither_start_nor_join_nor_end(tmp_path, expected):
    control = f"unix:{tmp_path}/agent.sock"
    with (
        held_port() as nobody,
        trainer_process(PEERS_ALLOWED) as (_, here),
        trainer_process(PEERS_ALLOWED) as (_, there),
    ):
        trainers = candidates(away=f"127.0.0.1:{nobody}", here=here, there=there)
        began = time.monotonic()
        with agent_process(*CHOSEN, trainers, f"control.listen={control}", output=tmp_path) as (process, said):
            left_out = said.first_event("a candidate is left out at the beginning")
            assert left_out["trainer"] == "away"
            said.first_event("session opened")
            command(agent_app, "handover", "there", f"--control={control}")
            assert process.wait(PATIENCE_SECONDS) == ExitCode.OK
        assert time.monotonic() - began < PATIENCE_SECONDS
        assert set(workers(tmp_path)) == {"edge", "there"}
        assert_same_bits(expected, load_file(tmp_path / "model.safetensors"))


@pytest.mark.slow
def test_one_that_refuses_is_left_out_by_name_and_ends_the_run_as_the_last(tmp_path, expected):
    with (
        trainer_process("models.allowed=[]") as (_, strict),
        trainer_process("server.max_sessions=1") as (_, open_one),
    ):
        several = candidates(strict=strict, open=open_one)
        with agent_process(*CHOSEN, several, output=tmp_path) as (process, said):
            left_out = said.first_event("a candidate is left out at the beginning")
            assert (left_out["trainer"], "models.allowed" in left_out["reason"]) == ("strict", True)
            assert process.wait(PATIENCE_SECONDS) == ExitCode.OK
        assert set(workers(tmp_path)) == {"edge", "open"}
        assert_same_bits(expected, load_file(tmp_path / "model.safetensors"))
        done = run_agent("run", *(f"--set={flag}" for flag in [*CHOSEN, candidates(strict=strict, stern=strict)]))
        assert_one_sentence("edge-agent", done, ExitCode.REFUSED, "'strict' does not allow 'shared.model.zoo")


def test_nobody_in_reach_at_the_start_is_said_with_all_names():
    with held_port() as one, held_port() as other:
        timeout = "connect_timeout_seconds=0.5"
        trainers = ", ".join(
            f'{{name="{name}", address="127.0.0.1:{port}", {timeout}}}' for name, port in (("a", one), ("b", other))
        )
        done = run_agent("run", *(f"--set={flag}" for flag in [*CHOSEN, f"trainers=[{trainers}]"]))
        assert_one_sentence(
            "edge-agent", done, ExitCode.UNREACHABLE, "none of the trainers can be reached: a: ", "; b: "
        )
