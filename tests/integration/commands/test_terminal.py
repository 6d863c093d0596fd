"""The view of a user on a terminal of eighty columns: a bar that no log line is glued to, and none before there is a
step."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios

import pytest

from shared.errors import ExitCode
from tests.support.commands import MLP
from tests.support.running import ROOT

pytestmark = pytest.mark.usefixtures("one_thread")

COLUMNS = 80
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
LOG_LINE = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d")


def on_a_terminal(*arguments):
    """An agent process on a terminal, run to its end: its exit code, and all that it wrote."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-m", "edge_agent.main", *arguments],
        cwd=ROOT,
        env={**os.environ, "TERM": "xterm-256color"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    written = b""
    try:
        while chunk := os.read(ours, 65536):
            written += chunk
    except OSError:  # Linux's error when the other end is closed
        pass
    finally:
        os.close(ours)
        process.kill()
        code = process.wait()
    return code, written.decode()


def lines(written):
    """Return the text that stood at the beginning of a line or was written after a return to it, without colours and
    movements."""
    return [CONTROL.sub("", line) for line in re.split(r"[\r\n]", written)]


@pytest.mark.slow
@pytest.mark.usefixtures("serves_the_next")
def test_a_log_line_stands_alone_and_the_bar_below_it(trainer):
    flags = [*MLP, "training.epochs=3", "training.max_steps=100", "log.level=info"]
    flags += ['data.test={factory="tests.support.samples:FlatDigits"}']
    code, written = on_a_terminal("run", f"--trainer={trainer}", *(f"--set={flag}" for flag in flags))
    assert code == 0, written
    logged = [line for line in lines(written) if LOG_LINE.search(line)]
    assert [line for line in logged if not LOG_LINE.match(line) or "samples/s" in line] == []
    assert sum("evaluated" in line for line in logged) == 3
    bars = [line for line in lines(written) if "samples/s" in line and "│" not in line]
    assert any("100/100" in line for line in bars)
    assert all(len(line.rstrip()) <= COLUMNS for line in bars)
    assert "nan" not in written


@pytest.mark.slow
def test_an_error_before_the_first_step_follows_no_bar():
    code, written = on_a_terminal("run", *(f"--set={flag}" for flag in [*MLP, "model.factory=nowhere:at_all"]))
    assert code == ExitCode.MODEL
    assert "loss" not in written
    assert "0/" not in written
    assert lines(written)[0].startswith("edge-agent: ")
