"""What the page of chains tells a reader to type, one command after the other, with a trainer that is there."""

import shlex

import pytest

from edge_agent.main import app
from shared.prediction import contiguous, load_table, vector
from tests.support.commands import command
from tests.support.pages import blocks
from tests.support.running import trainer_process

COMMANDS = [line for block in blocks("chain.md") if block.title == "terminal" for line in block.commands]


@pytest.fixture
def in_a_folder(tmp_path, monkeypatch):
    with trainer_process("compute.threads=1") as (_, address):
        monkeypatch.setenv("EDGE_AGENT_TRAINER__ADDRESS", address)
        monkeypatch.setenv("EDGE_AGENT_COMPUTE__THREADS", "1")
        monkeypatch.chdir(tmp_path)
        yield tmp_path


def test_tables_are_measured_learned_from_and_completed_as_the_page_says(in_a_folder, monkeypatch):
    monkeypatch.setattr("edge_agent.profiling.paper_network.STEPS", 50)
    assert len(COMMANDS) == 7
    for line in COMMANDS:
        program, name, *arguments = shlex.split(line)
        assert program == "edge-agent"
        short = ["--rounds", "1", "--repeats", "1"] if name == "measure" else []
        command(app, name, *arguments, *short)
    assert len(load_table(in_a_folder / "ten.json").samples) == 10
    completed = load_table(in_a_folder / "new.json")
    runs = {vector(*run, completed.layers) for run in contiguous(completed.layers)}
    assert {sample.layers for sample in completed.samples} == runs
