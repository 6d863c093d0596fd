"""The exit codes on the page: those that the program has."""

import re

from shared.errors import ExitCode
from tests.conftest import ROOT

DOCUMENT = ROOT / "docs" / "operations.md"
ROW = re.compile(r"^\| (\d+) \| ([A-Z]+) \| (.+?) \|", re.MULTILINE)


def documented():
    """Read (code, what happened) of every row by name, in order."""
    return {name: (int(code), text) for code, name, text in ROW.findall(DOCUMENT.read_text(encoding="utf-8"))}


def test_the_table_and_the_enum_have_the_same_codes_in_the_same_order():
    assert [(name, code) for name, (code, _) in documented().items()] == [(code.name, code.value) for code in ExitCode]
