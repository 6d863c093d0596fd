"""What pages tell a reader to type, done as it stands there: in an empty folder with our sources, in two terminals.

Only the installation is left out (tests/deploy/test_newcomer.py does it), and runs are shortened by variables.
"""

import json
import re
import shutil
import sys

import pytest

from edge_agent.main import app as agent_app
from tests.conftest import ROOT
from tests.support.commands import command
from tests.support.pages import Reader, blocks, fetched, looking
from tests.support.running import held_port

pytestmark = pytest.mark.slow

STEPS = 12
INSTALLATION = ("python3 -m venv", ".venv/bin/pip install")


@pytest.fixture
def folder(tmp_path):
    """What a clone has, as far as a reader needs it, and an environment in which it is installed."""
    for name in ("shared", "edge_agent", "cloud_trainer", "deploy/demo"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "isthmus.py", tmp_path)
    (tmp_path / ".venv").symlink_to(sys.prefix)
    return tmp_path


@pytest.fixture
def reader(folder):
    with held_port() as port:
        yield reader_at(folder, f"127.0.0.1:{port}")


def reader_at(folder, address):
    short = {"EDGE_AGENT_TRAINING__MAX_STEPS": str(STEPS), "EDGE_AGENT_TRAINER__ADDRESS": address}
    one_thread = {f"{side}_COMPUTE__THREADS": "1" for side in ("EDGE_AGENT", "CLOUD_TRAINER")}
    environment = {"PYTHONPATH": str(folder), "CLOUD_TRAINER_SERVER__LISTEN": address, **short, **one_thread}
    return Reader(folder, environment=environment, done=INSTALLATION)


def test_the_quickstart_is_five_commands_from_a_clone_to_a_run_that_can_be_watched(folder, reader):
    page = blocks("quickstart.md")
    commands = [command for block in page if block.title for command in block.commands]
    first_run = next(number for number, command in enumerate(commands, 1) if "edge-agent run" in command)
    assert 1 + first_run <= 5, "the clone is a command too"
    assert all(command.startswith(INSTALLATION) == (number < 2) for number, command in enumerate(commands))

    with held_port() as port:  # the page's own may be in use on a developer's machine
        page = [type(block)(block.language, block.title, block.text.replace("9464", str(port))) for block in page]
        with looking(lambda: fetched(f"http://127.0.0.1:{port}/metrics")) as seen:
            typed = {one.command: one.output for one in reader.follow(page)}
    assert any("isthmus_steps_total" in text and "isthmus_loss" in text for text in seen)
    runs = [output for command, output in typed.items() if "edge-agent run" in command]
    assert all("session" in output and "on trainer" in output and "accuracy" in output for output in runs)
    summary = json.loads((folder / "run" / "demo" / "summary.json").read_text())
    assert (summary["steps"], summary["edge_blocks"]) == (STEPS, 3), "the second run is the last"
    assert (folder / "run" / "demo" / "model.safetensors").exists()
    (report,) = (output for command, output in typed.items() if "doctor" in command)
    assert "round trip" in report


def test_a_module_of_twenty_lines_trains_across_two_processes(folder, reader):
    page = blocks("your-own.md")
    (module,) = (block for block in page if block.title == "mine.py")
    assert len(module.text.splitlines()) == 20
    typed = {one.command: one.output for one in reader.follow(page)}
    (use,) = (output for command, output in typed.items() if "use.py" in command)
    assert use.startswith("says ")
    summary = json.loads((folder / "run" / "mine" / "summary.json").read_text())
    assert summary["steps"] == STEPS
    assert {block["worker"] for block in summary["blocks"]} == {"edge", "trainer"}
    assert summary["accuracy"] is not None


def test_every_kind_of_placement_is_shown_as_its_page_says_and_costs_what_the_page_says(folder, monkeypatch):
    reader = Reader(folder, environment={"PYTHONPATH": str(folder), "EDGE_AGENT_COMPUTE__THREADS": "1"})
    page = blocks("placement.md")
    typed = {one.command.rpartition(" ")[2]: one.output for one in reader.follow(page)}
    rows = re.findall(
        r"^\| `(\S+\.toml)` \| ([\d,| ]+) \|$", (ROOT / "docs" / "placement.md").read_text(), re.MULTILINE
    )
    costs = {name: tuple(int(cell.replace(",", "")) for cell in cells.split("|")) for name, cells in rows}
    configurations = {block.title for block in page if block.language == "toml"}
    assert set(costs) == configurations == set(typed) - {"deployment.cut=2"}
    monkeypatch.chdir(folder)
    for name, told in costs.items():
        assert told == figures(name), name


def figures(name):
    """Bytes that the device sends and receives, that go between trainers, and that the device holds."""
    document = json.loads(command(agent_app, "placement", "--config", name, "--json"))
    sent, received, others = 0, 0, 0
    for one in document["crossings"]:
        sent += one["bytes"] * (one["from"] == "edge")
        received += one["bytes"] * (one["to"] == "edge")
        others += one["bytes"] * ("edge" not in (one["from"], one["to"]))
    return sent, received, others, next(one["total"] for one in document["memory"] if one["worker"] == "edge")
