"""The quickstart as a stranger does it: from a clone, with Python alone, to a whole run that can be watched.

Once here, in an empty folder and a new environment, and once on a machine that has nothing. The time of each command is
printed.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.support.hosts.machine import booted, debian_tree, needs, overlay, wheels
from tests.support.pages import Reader, blocks, fetched, looking

pytestmark = pytest.mark.timeout(3600)
METRICS = "http://127.0.0.1:9464/metrics"
FETCH = f"from urllib.request import urlopen; print(urlopen('{METRICS}').read().decode())"


def clone_to(folder):
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("needs git and a checkout to clone")
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder)], check=True)
    return folder


def follow_the_quickstart(reader, fetch, capsys):
    with looking(fetch, every_seconds=1.0) as seen:
        typed = list(reader.follow(blocks("quickstart.md")))
    with capsys.disabled():
        print()
        for one in typed:
            print(f"{one.seconds:7.1f} s  {one.command}")
    assert any("isthmus_steps_total" in text for text in seen)
    first_run = next(one.output for one in typed if "edge-agent run" in one.command)
    assert "accuracy" in first_run


def test_in_an_empty_folder(tmp_path, capsys, monkeypatch):
    clone = clone_to(tmp_path / "isthmus")
    for name in [
        name for name in os.environ if name.startswith(("EDGE_AGENT_", "CLOUD_TRAINER_", "VIRTUAL_ENV", "PYTHON"))
    ]:
        monkeypatch.delenv(name)  # nothing of the developer's
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3").symlink_to(
        Path(sys.executable).resolve()
    )  # the Python that these tests' environment is of
    reader = Reader(clone, environment={"PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"})
    follow_the_quickstart(reader, lambda: fetched(METRICS), capsys)
    assert (clone / "run" / "demo" / "model.safetensors").exists()


@pytest.mark.root
def test_on_a_machine_that_has_only_python(tmp_path, capsys):
    needs("systemd-nspawn", "nsenter")
    packages = wheels()  # in place of an index, which it cannot reach
    with overlay(debian_tree(), tmp_path) as root:
        clone_to(root / "isthmus")
        shutil.copytree(packages, root / "wheels")
        with booted(root, f"isthmus-newcomer-{os.getpid()}") as machine:
            shell = machine.shell(PIP_NO_INDEX="1", PIP_FIND_LINKS="/wheels", HOME="/root", PATH=os.defpath)
            reader = Reader(root / "isthmus", shell, "/isthmus")
            follow_the_quickstart(reader, lambda: machine.run("python3", "-c", FETCH, check=False) or None, capsys)
            assert (root / "isthmus" / "run" / "demo" / "model.safetensors").exists()
