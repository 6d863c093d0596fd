"""The exit codes that the documentation promises are those that the code has."""

import re
import sys

import pytest
import typer

from shared.commands.entry import run_command
from shared.errors import ExitCode, IsthmusError, ModelError
from tests.conftest import ROOT

DOCUMENT = ROOT / "docs" / "exit-codes.md"
ROW = re.compile(r"^\| (\d+) \| ([A-Z]+) \| (.+?) \|", re.MULTILINE)


def documented():
    """Name to (code, what happened) of every row, in order."""
    return {name: (int(code), text) for code, name, text in ROW.findall(DOCUMENT.read_text(encoding="utf-8"))}


def errors(base=IsthmusError):
    """Every kind of error that is ours."""
    for kind in base.__subclasses__():
        yield kind
        yield from errors(kind)


def test_the_table_and_the_enum_have_the_same_codes_in_the_same_order():
    assert [(name, code) for name, (code, _) in documented().items()] == [(code.name, code.value) for code in ExitCode]


def test_codes_are_what_a_process_can_return_and_each_means_one_thing():
    assert len({code.value for code in ExitCode}) == len(ExitCode.__members__)
    assert all(0 <= code <= 255 for code in ExitCode)
    a_shells_own = {code for code in ExitCode if code >= 126}
    assert a_shells_own == {ExitCode.INTERRUPTED, ExitCode.TERMINATED}, "they mean what a shell means by them"


def test_every_error_that_a_user_can_cause_has_a_code_of_its_own_kind():
    # A kind below another one ends a process as that one does.
    own = {
        kind: kind.exit_code
        for kind in errors()
        if kind.__module__ == "shared.errors" and kind.__base__ is IsthmusError
    }
    assert len(own) > 5
    assert all(code not in (ExitCode.OK, ExitCode.INTERNAL) for code in own.values())
    assert len(set(own.values())) == len(own), "two kinds of error share a code"


@pytest.mark.parametrize("kind", [kind for kind in errors() if kind.__module__ == "shared.errors"])
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
