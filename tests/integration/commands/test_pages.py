"""Commands that pages tell a reader to type, done as they stand there: in an empty folder with our sources, in two
terminals.

Only the installation is left out (tests/deploy/test_newcomer.py does it), and runs are shortened by variables, but for the
examples, which train as long as they say.
"""

import json
import re
import shutil
import sys
from importlib.util import find_spec

import pytest
import torch
from safetensors.torch import load_file

from edge_agent.main import app as agent_app
from tests.conftest import ROOT
from tests.support.commands import command
from tests.support.pages import Reader, blocks, blocks_of, fetched, looking, sections
from tests.support.running import held_port

pytestmark = pytest.mark.slow

STEPS = 12
TRANSFER = sections("transfer.md")
EXAMPLES = {**sections("examples.md"), "Transfer learning": TRANSFER["A pretrained network"]}
LANGUAGE_MODEL = EXAMPLES.pop("A language model")
TASKS = EXAMPLES.pop("The tasks of paper 000")
INSTALLATION = ("python3 -m venv", ".venv/bin/pip install")


@pytest.fixture
def folder(tmp_path):
    """Make a folder with the parts of a clone that a reader needs, and an environment in which it is installed."""
    for name in ("shared", "edge_agent", "cloud_trainer"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("isthmus.py", "isthmus_entry_points.py"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "docs" / "examples", tmp_path / "docs" / "examples")
    (tmp_path / ".venv").symlink_to(sys.prefix)
    return tmp_path


@pytest.fixture
def reader(folder):
    with held_port() as port:
        yield reader_at(folder, f"127.0.0.1:{port}")


def reader_at(folder, address, steps=STEPS):
    """steps: the most that a run makes; None for as many as it says."""
    short = {} if steps is None else {"EDGE_AGENT_TRAINING__MAX_STEPS": str(steps)}
    addresses = {"EDGE_AGENT_TRAINER__ADDRESS": address, "CLOUD_TRAINER_SERVER__LISTEN": address}
    one_thread = {f"{program}_THREADS": "1" for program in ("EDGE_AGENT_COMPUTE_", "CLOUD_TRAINER_COMPUTE_", "OMP_NUM")}
    environment = {"PYTHONPATH": str(folder), **addresses, **short, **one_thread}
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
    for _ in reader.follow(page):
        pass
    summary = json.loads((folder / "run" / "mine" / "summary.json").read_text())
    assert summary["steps"] == STEPS
    assert {block["worker"] for block in summary["blocks"]} == {"edge", "trainer"}
    typed = {one.command.split()[2]: one.output for one in reader.follow(blocks("afterwards.md"))}
    assert typed["evaluate"] == f"loss {summary['test_loss']:.6g}\naccuracy {summary['accuracy']:.6g}\n"
    assert len((folder / "run" / "mine" / "outputs.csv").read_text().splitlines()) == 1 + 400
    assert "computes as the model does" in typed["export"]


@pytest.fixture
def train(folder):
    """Does what a page says until its run has ended; returns its summary, what it printed, and the folder of its results."""

    def train(page):
        with held_port() as port:
            *_, run = reader_at(folder, f"127.0.0.1:{port}", steps=None).follow(page)
        directory = folder / "run" / re.search(r"(\w+)\.toml", run.command)[1]
        return json.loads((directory / "summary.json").read_text()), run.output, directory

    return train


def test_a_language_model_is_fine_tuned_by_adapters_with_texts_and_labels_that_stay(folder):
    if find_spec("peft") is None:
        pytest.skip("peft is not installed")
    # As where a reader installs: there is no torchvision, which one that is built for CUDA would be here.
    for each in (folder, folder / "docs" / "examples"):  # commands name the second as PYTHONPATH
        (each / "sitecustomize.py").write_text('import sys\n\nsys.modules["torchvision"] = None\n')
    page = blocks_of(LANGUAGE_MODEL)
    with held_port() as port:
        typed = {one.command: one.output for one in reader_at(folder, f"127.0.0.1:{port}", steps=None).follow(page)}
    (shown,) = (output for command, output in typed.items() if "edge-agent placement" in command)
    assert re.search(r"│ gpu +│ no +│ no +│ no ", shown), "neither inputs nor labels nor outputs"
    summary = json.loads((folder / "run" / "notes" / "summary.json").read_text())
    assert summary["test_loss"] < float(re.search(r"test loss ends below ([\d.]+\d)", LANGUAGE_MODEL)[1])
    assert [block["worker"] for block in summary["blocks"]] == [*["edge"] * 3, *["gpu"] * 3, "edge"]
    trained, base = (load_file(folder / place / "model.safetensors") for place in ("run/notes", "base"))
    kept = {name.removeprefix("base_model.model.").replace(".base_layer", ""): name for name in trained}
    assert all(torch.equal(value, trained[kept[name]]) for name, value in base.items())
    adapters = load_file(folder / "run" / "notes" / "adapters.safetensors")
    assert adapters.keys() == {name for name in trained if ".lora_" in name}
    (said,) = (output for command, output in typed.items() if "use_notes.py" in command)
    assert said.splitlines()[-1].startswith("07:30 pump 4 is ")


@pytest.mark.full
@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_ends_with_the_accuracy_that_the_page_promises(train, example):
    page = blocks_of(EXAMPLES[example])
    summary, printed, directory = train(page)
    assert summary["accuracy"] > promised_accuracy(example)
    assert {block["worker"] for block in summary["blocks"]} == {"edge", "trainer"}
    assert f"{summary['accuracy']:.2%}" in printed
    shown = "".join(block.text for block in page if block.language == "text")
    assert all(line in printed for line in shown.splitlines() if line.startswith("│ on "))
    state = load_file(directory / "model.safetensors")
    assert sum(block["parameters"] for block in summary["blocks"]) <= sum(map(torch.numel, state.values()))
    assert (summary["bytes_down"] == 0) == (example == "Transfer learning"), "nothing flows back to frozen blocks"


def test_a_task_of_paper_000_is_a_configuration_that_trains(reader):
    *_, trained = reader.follow(blocks_of(TASKS))
    assert "on trainer" in trained.output


@pytest.mark.full
def test_the_transfer_does_worse_without_what_was_trained_before(folder, train):
    file = folder / "docs" / "examples" / "transfer.toml"
    text, found = re.subn(r"^start_from = .*\n", "", file.read_text(), flags=re.MULTILINE)
    assert found
    file.write_text(text)
    summary, _, _ = train(blocks_of(EXAMPLES["Transfer learning"]))
    assert summary["accuracy"] < promised_accuracy("Transfer learning")


def promised_accuracy(example):
    (percent,) = re.findall(r"accuracy [^.]*is above (\d+) %", EXAMPLES[example])
    return int(percent) / 100


COSTS = {
    "two-workers.toml": (131_104, 131_072, 0, 1_112_792),
    "edge-only.toml": (0, 0, 0, 2_279_176),
    "labels-stay.toml": (139_264, 139_264, 0, 285_400),
    "inverted.toml": (73_728, 65_536, 0, 754_848),
    "chain.toml": (131_104, 131_072, 131_072, 306_248),
    "shared.toml": (58_744, 52_568, 196_608, 352_984),
    "recall.toml": (131_104, 0, 0, 19_800),
}
"""The figures of a step of each example on the page of placements."""


@pytest.mark.full
def test_every_kind_of_placement_costs_what_it_must(folder, monkeypatch):
    reader = Reader(folder, environment={"PYTHONPATH": str(folder), "EDGE_AGENT_COMPUTE__THREADS": "1"})
    page = [*blocks("placement.md"), *blocks_of(TRANSFER["Features that are sent once"])]
    assert len(list(reader.follow(page))) == 1
    monkeypatch.chdir(folder)
    shown = [block.title for block in page if block.language == "toml"]
    assert {name: figures(name) for name in shown} == COSTS


def figures(name):
    """Bytes that the device sends and receives, that go between trainers, and that the device holds."""
    document = json.loads(command(agent_app, "placement", "--config", name, "--json"))
    sent, received, others = 0, 0, 0
    for one in document["crossings"]:
        sent += one["bytes"] * (one["from"] == "edge")
        received += one["bytes"] * (one["to"] == "edge")
        others += one["bytes"] * ("edge" not in (one["from"], one["to"]))
    return sent, received, others, next(one["total"] for one in document["memory"] if one["worker"] == "edge")
