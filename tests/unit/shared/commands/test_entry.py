"""The end of a command: an error with one line and its code, a defect with its traceback."""

import json
import subprocess
import sys

import pytest
import typer

from shared import errors
from shared.commands.entry import run_command
from shared.errors import ConfigError, ExitCode, IsthmusError, ModelError
from tests.support.running import ROOT

KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, IsthmusError)]


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_ends_a_process_with_one_line_and_its_code(kind, capsys):
    def fail():
        raise kind("section.key is 5; it must be 4")

    with pytest.raises(SystemExit) as ended:
        run_command("edge-agent", fail)
    assert ended.value.code == kind.exit_code
    assert capsys.readouterr().err == "edge-agent: section.key is 5; it must be 4\n"


def test_a_defect_keeps_its_traceback():
    def fail():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_command("edge-agent", fail)


def test_what_a_users_code_said_on_many_lines_is_one(capsys):
    def fail():
        raise ModelError("factory 'a:b' failed with KeyError: first\n\n  second\x1b[31m")

    with pytest.raises(SystemExit):
        run_command("edge-agent", fail)
    assert capsys.readouterr().err == "edge-agent: factory 'a:b' failed with KeyError: first second?[31m\n"


def interrupted():
    raise KeyboardInterrupt


def interrupted_command():
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(interrupted)
    app([])


@pytest.mark.parametrize("command", [interrupted, interrupted_command])
def test_ctrl_c_ends_a_process_with_its_code_and_says_so(command, capsys):
    with pytest.raises(SystemExit) as ended:
        run_command("edge-agent", command)
    assert ended.value.code == ExitCode.INTERRUPTED
    assert capsys.readouterr().err == "edge-agent: interrupted\n"


@pytest.mark.parametrize("code", [0, 1, 2, 3])
def test_another_exit_is_left_alone(code, capsys):
    with pytest.raises(SystemExit) as ended:
        run_command("edge-agent", lambda: sys.exit(code))
    assert ended.value.code == code
    assert capsys.readouterr().err == ""


@pytest.mark.first_case
@pytest.mark.parametrize("failure", [ConfigError('key is "a"'), KeyboardInterrupt(), ZeroDivisionError("a defect")])
def test_a_log_that_is_to_be_json_is_json_to_the_last_line(failure):
    program = f"""
from shared.commands.entry import run_command
from shared.commands.process_log import process_log
from shared.config import LogConfig
from shared.errors import ConfigError
def fails():
    with process_log(LogConfig(format="json")):
        raise {failure!r}
run_command("edge-agent", fails)
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    (line,) = done.stderr.splitlines()
    said = json.loads(line)
    assert said["event"].startswith("edge-agent: ")
    assert said["exit_code"] == done.returncode != 0
    assert ("ZeroDivisionError" in said.get("exception", "")) == isinstance(failure, ZeroDivisionError)
