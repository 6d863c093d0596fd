"""Commands that the page of chains tells a reader to type, one after the other, with trainers that are there."""

import os
import runpy
import shlex
import signal
import subprocess
import sys
from contextlib import ExitStack, contextmanager

import pytest

from edge_agent.main import app
from edge_agent.planning.prediction import contiguous, load_table, vector
from edge_agent.planning.profile import load_profile
from tests.support.commands import command
from tests.support.pages import blocks
from tests.support.running import ROOT, StandardError, held_port, trainer_process

pytestmark = pytest.mark.slow

PAGE = blocks("chain.md")
FOLLOWED = ("near", "far", "edge")
COMMANDS = [line for block in PAGE if block.title == "terminal" for line in block.commands]


@pytest.fixture
def in_a_folder(tmp_path, monkeypatch):
    with trainer_process("compute.threads=1") as (_, address):
        monkeypatch.setenv("EDGE_AGENT_TRAINER__ADDRESS", address)
        monkeypatch.setenv("EDGE_AGENT_COMPUTE__THREADS", "1")
        monkeypatch.chdir(tmp_path)
        yield tmp_path


def test_tables_are_measured_and_predicted_as_the_page_says(in_a_folder, monkeypatch):
    assert len(COMMANDS) == 5
    for line in COMMANDS:
        words = shlex.split(line)
        if words[0] == "python":
            monkeypatch.setattr(sys, "argv", words[2:])
            with pytest.raises(SystemExit) as ended:
                runpy.run_module(words[2], run_name="__main__")
            assert not ended.value.code
            continue
        program, *arguments = words
        assert program == "edge-agent"
        command(app, *arguments, "--repeats", "2")
    completed = load_table(in_a_folder / "new.json")
    runs = {vector(*run, completed.layers) for run in contiguous(completed.layers)}
    assert {sample.layers for sample in completed.samples} == runs
    monkeypatch.delenv("EDGE_AGENT_TRAINER__ADDRESS")
    ((line,),) = (block.commands for block in PAGE if block.title == "profile")
    (in_a_folder / "edge.toml").write_text(next(block.text for block in PAGE if block.title == "edge.toml"))
    told = command(app, *shlex.split(line)[1:])
    assert "runs from its table" in told


@contextmanager
def serving(line, folder):
    """The trainer of a terminal, as the page has it typed, until it is interrupted."""
    program, *arguments = shlex.split(line)
    assert program == "cloud-trainer"
    quick = {"CLOUD_TRAINER_COMPUTE__THREADS": "1", "CLOUD_TRAINER_CONTROL__LISTEN": "none"}
    environment = {**os.environ, **quick, "PYTHONPATH": str(ROOT), "CLOUD_TRAINER_LOG__FORMAT": "json"}
    process = subprocess.Popen(
        [sys.executable, "-m", "cloud_trainer.main", *arguments],
        cwd=folder,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    )
    said = StandardError(process)
    try:
        said.first_event("listening")
        yield
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(timeout=60)
        said.join()


def test_three_machines_are_profiled_planned_and_trained_as_the_page_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for key, value in {"COMPUTE__THREADS": "1", "CONTROL__LISTEN": "none", "TRAINING__MAX_STEPS": "12"}.items():
        monkeypatch.setenv(f"EDGE_AGENT_{key}", value)
    files = {block.title: block.text for block in PAGE if block.language == "toml" and block.title}
    typed = {title: [line for block in PAGE if block.title == title for line in block.commands] for title in FOLLOWED}
    assert list(files) == ["near.toml", "far.toml", "edge.toml"]
    printed = []
    with held_port() as near, held_port() as far, ExitStack() as terminals:
        ports = {"near.toml": near, "far.toml": far}
        for name, text in files.items():
            here = text.replace("near.lan:50051", f"127.0.0.1:{near}").replace("far.lan:50051", f"127.0.0.1:{far}")
            (tmp_path / name).write_text(here.replace("0.0.0.0:50051", f"127.0.0.1:{ports.get(name)}"))
        for title in ("near", "far"):
            (line,) = typed[title]
            terminals.enter_context(serving(line, tmp_path))
        for line in typed["edge"]:
            program, *arguments = shlex.split(line)
            assert program == "edge-agent"
            printed.append(command(app, *arguments))
            assert (tmp_path / "chain.json").exists() == (len(printed) > 1), "a dry run measures nothing"
    dry, profiled, planned, trained = printed
    told = "".join(f"{line}\n" for line in dry.splitlines()[:4])
    assert any(block.text.rpartition("about")[0] == told for block in PAGE), "the page shows what is printed"
    assert dry.splitlines()[:4] == profiled.splitlines()[:4]
    assert load_profile(tmp_path / "chain.json").names == ("edge", "near", "far")
    assert planned.startswith(("cut", "all blocks on edge")), "workers of one speed may be left empty"
    assert "on near" in trained
    assert "on far" in trained
