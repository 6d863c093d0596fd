"""The commands as a user runs them, and how they must end when something is wrong."""

import io
import json
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout

import typer
from typer.main import get_command

from tests.support import forked
from tests.support.running import run_agent

MLP = [
    'model.factory="shared.model.zoo:mlp"',
    'data.train={factory="tests.support.samples:FlatDigits"}',
    "deployment.cut=1",
    "compute.threads=1",
]
"""A small training that knows no trainer yet."""


def assert_one_sentence(command: str, done: subprocess.CompletedProcess[str], code: int, *says: str) -> None:
    """It ended with this exit code and one sentence, the last that it said, on one line, which says all of this."""
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr + done.stdout
    assert done.stdout == ""
    said = [spoken(line) for line in done.stderr.splitlines()]
    sentences = [line for line in said if line.startswith(f"{command}: ")]
    assert len(sentences) == 1, done.stderr
    assert said[-1] == sentences[0]
    for part in says:
        assert part in sentences[0]


def spoken(line: str) -> str:
    """Return the statement in a line of standard error: the event of an entry of the log, or the line itself."""
    return str(json.loads(line)["event"]) if line.startswith("{") else line


def agent_fails(
    code: int,
    *says: str,
    flags: Sequence[str] = (),
    trainer: str = "127.0.0.1:1",
    environ: Mapping[str, str] | None = None,
) -> str:
    """Run an agent that has to end so; returns all that it said on standard error."""
    flags = [*MLP, "trainer.connect_timeout_seconds=20", *flags]
    done = run_agent("run", f"--trainer={trainer}", *(f"--set={flag}" for flag in flags), environ=environ)
    assert_one_sentence("edge-agent", done, code, *says)
    return done.stderr


def trainer_fails(code: int, *says: str, flags: Sequence[str]) -> None:
    """Start a trainer that has to end so."""
    done = forked.run("cloud_trainer.main", "serve", *(f"--set={flag}" for flag in flags), timeout_seconds=120)
    assert_one_sentence("cloud-trainer", done, code, *says)


def command(app: typer.Typer, *arguments: str) -> str:
    """Run a command in this process and return what it says; raises the error that it fails with.

    What a run beside it logs meanwhile is in it too: `typer.testing.CliRunner` closes its files under such a run's feet.
    """
    said = io.StringIO()
    with redirect_stdout(said), redirect_stderr(said):
        get_command(app).main(arguments, standalone_mode=False)
    return said.getvalue()
