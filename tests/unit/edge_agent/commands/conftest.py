"""A profile for the commands that plan, and the command line as a user meets it."""

import sys

import pytest

from edge_agent.main import main
from edge_agent.planning import profile_to_json
from tests.support.planning.cases import small_profile


@pytest.fixture
def profile_path(tmp_path):
    path = tmp_path / "profile.json"
    path.write_text(profile_to_json(small_profile()))
    return path


@pytest.fixture
def edge_agent(monkeypatch, capsys):
    """Return a function that runs the entry point and returns its exit code and its output on both streams."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["edge-agent", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        return ended.value.code or 0, captured.out, captured.err

    return run
