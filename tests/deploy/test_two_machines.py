"""A stranger's way with a model of his own: from a wheel in empty environments on two machines to a file for ONNX.

The machines are network namespaces, so each reaches the other alone. The time of each command is printed.
"""

import json
import os
import shutil
import sys
from contextlib import ExitStack

import pytest

from benchmarks.net.namespaces import linked_namespaces, missing
from tests.support.pages import Block, Reader, blocks, looking
from tests.support.wheel import built_wheel

pytestmark = [pytest.mark.timeout(3600), pytest.mark.root]
PAGE = "http://127.0.0.1:8080"
LOOK = f"""
import json
from urllib.request import Request, urlopen

asked = Request("{PAGE}/isthmus.v1.EdgeControlService/GetStatus", b"{{}}", {{"Content-Type": "application/json"}})
print(json.dumps([urlopen("{PAGE}/").read().decode(), json.load(urlopen(asked))["status"]]))
"""
COMPARE = """
import numpy, onnxruntime, torch
from safetensors.torch import load_file
from mine import held_out, make_net

network = make_net().eval()
network.load_state_dict(load_file("run/best.safetensors"))
inputs = torch.stack([value for value, _ in held_out()])
session = onnxruntime.InferenceSession("best.onnx")
(outputs,) = session.run(None, {session.get_inputs()[0].name: inputs.numpy()})
print(numpy.abs(outputs - network(inputs).detach().numpy()).max())
"""
MOST_SECONDS = 600
"""Time that a stranger is to need for all but the installations."""
COPIES = {"trainer.toml": ("device", "gpu"), "certificates": ("gpu", "device")}
"""Things that `scp` copies on the page, and between which machines."""


def test_from_a_wheel_to_an_exported_model(tmp_path, capsys, monkeypatch):
    if reason := missing():
        pytest.skip(f"two machines {reason}")
    for name in [
        name for name in os.environ if name.startswith(("EDGE_AGENT_", "CLOUD_TRAINER_", "VIRTUAL_ENV", "PYTHON"))
    ]:
        monkeypatch.delenv(name)  # nothing of the developer's
    machines = {name: tmp_path / name for name in ("device", "gpu")}
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3").symlink_to(shutil.which("python3", path=sys.base_prefix + "/bin"))
    wheel = built_wheel(tmp_path)
    (module,) = (block for block in blocks("your-own.md") if block.title == "mine.py")
    for folder in machines.values():
        folder.mkdir()
        shutil.copy(wheel, folder)
        (folder / module.title).write_text(module.text)
    path = {"PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    with ExitStack() as stack:
        link = stack.enter_context(linked_namespaces("stranger"))
        sides = {"device": link.edge, "gpu": link.cloud}
        inside = {
            name: Reader(machines[name], sides[name].command(["sh", "-c"]), environment=path) for name in machines
        }
        outside = {name: Reader(machines[name], environment=path) for name in machines}  # with an index to install from
        stack.callback(inside["gpu"].interrupt)
        python = machines["device"] / ".venv" / "bin" / "python"

        def look():
            done = link.edge.run([python, "-c", LOOK], capture_output=True, text=True)
            return done.stdout if done.returncode == 0 else None

        typed = []
        seen = stack.enter_context(looking(look, every_seconds=0.2))
        for machine, command in commands(blocks("two-machines.md"), link.cloud.address):
            if command.startswith("scp"):
                copied(command, machines)
            else:
                where = outside if installs(command) else inside
                typed.append((machine, where[machine].type(command)))
    with capsys.disabled():
        print()
        for machine, one in typed:
            print(f"{one.seconds:7.1f} s  {machine:6}  {one.command}")
        print(f"{sum(one.seconds for _, one in typed):7.1f} s  in all, one after the other")
    assert sum(one.seconds for _, one in typed if not installs(one.command)) <= MOST_SECONDS
    pages, statuses = zip(*map(json.loads, seen), strict=True)
    assert all("<!doctype html>" in page.lower() for page in pages)
    assert {status["model"] for status in statuses} == {"mine:make_net"}
    summary = json.loads((machines["device"] / "run" / "summary.json").read_text())
    assert {block["worker"] for block in summary["blocks"]} == {"edge", "trainer"}
    difference = outside["device"].type(f".venv/bin/python -c '{COMPARE}'").output
    assert float(difference.splitlines()[-1]) < 1e-5


def installs(command):
    """Tell whether a command asks an index, whose pace is not ours."""
    return "pip install" in command or "venv .venv" in command


def commands(page: list[Block], address):
    """Each command of the page with its machine, where the trainer's name is an address."""
    for block in page:
        for machine in ("device", "gpu") if block.title == "both" else (block.title,):
            for command in block.commands if block.title else ():
                yield machine, command.replace("gpu.example.org", address)


def copied(command, machines):
    """Copy what `scp` would."""
    (what,) = (name for name in COPIES if name in command)
    here, there = (machines[name] / what for name in COPIES[what])
    if here.is_dir():
        for file in (here / "ca.pem", *here.glob("edge.*")):
            shutil.copy(file, there)
    else:
        shutil.copy(here, there)
