"""The console scripts before our code runs: a folder in our packages' place, an impatient user, and the version."""

import os
import signal
import subprocess
import sys
import tomllib
from importlib.metadata import version

import pytest

from shared.errors import ExitCode
from shared.version import PROTOCOL_VERSION
from tests.support.commands import assert_one_sentence
from tests.support.running import ROOT

SCRIPTS = {"edge-agent": "edge_agent", "cloud-trainer": "cloud_trainer"}
"""Each console script, and its function."""


IN_THE_PATH = f"sys.path.insert(1, {str(ROOT)!r})"
BEHIND_THE_PATH = (
    "from importlib.machinery import PathFinder; finder = type('Finder', (), {}); "
    f"finder.find_spec = lambda name, path=None, target=None: PathFinder.find_spec(name, path or [{str(ROOT)!r}]); "
    "sys.meta_path.append(finder)"
)
"""Places where Python looks for our modules: a folder, or, as in an editable install, what no folder has."""


def started(function, *arguments, folder, found=IN_THE_PATH):
    """The console script of a user who works in `folder` and has it on the PYTHONPATH, as our pages advise."""
    code = f"import sys; sys.path[0] = '.'; {found}; import isthmus_entry_points; isthmus_entry_points.{function}()"
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process):
    out, err = process.communicate(timeout=120)
    return subprocess.CompletedProcess([], process.returncode, out, err)


def test_the_scripts_that_are_installed_are_these():
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts == {name: f"isthmus_entry_points:{function}" for name, function in SCRIPTS.items()}


@pytest.mark.first_case
@pytest.mark.parametrize("name", SCRIPTS)
@pytest.mark.parametrize("is_package", [True, False])
@pytest.mark.parametrize("found", [IN_THE_PATH, BEHIND_THE_PATH])
def test_a_package_of_the_users_named_as_one_of_ours_does_not_hide_it(tmp_path, name, is_package, found):
    (tmp_path / "shared").mkdir()
    if is_package:
        (tmp_path / "shared" / "__init__.py").write_text("raise AssertionError('it is not ours')")
    done = ended(started(SCRIPTS[name], "--help", folder=tmp_path, found=found))
    assert done.returncode == 0, done.stderr


@pytest.mark.first_case
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_clone_beside_the_users_module_hides_nothing_of_an_editable_install(tmp_path, name):
    (tmp_path / "isthmus" / "shared").mkdir(parents=True)
    done = ended(started(SCRIPTS[name], "--help", folder=tmp_path, found=BEHIND_THE_PATH))
    assert done.returncode == 0, done.stderr


FROM_PYTHON = "from isthmus import EdgeConfig, load_config; print(load_config(EdgeConfig, None).training.epochs)"


def test_a_clone_beside_a_program_hides_no_installed_isthmus(tmp_path):
    (tmp_path / "isthmus" / "shared").mkdir(parents=True)
    assert in_python(tmp_path, FROM_PYTHON, IN_THE_PATH) == "10"


def in_python(folder, code, found):
    """Return what a program of a user prints, or its last line of error."""
    whole = f"import sys; sys.path[0] = '.'; {found}; {code}"
    done = subprocess.run([sys.executable, "-c", whole], cwd=folder, capture_output=True, text=True)
    return done.stdout.strip() or done.stderr.splitlines()[-1]


@pytest.mark.first_case
@pytest.mark.parametrize("found", [BEHIND_THE_PATH, IN_THE_PATH])
def test_a_program_imports_isthmus_whatever_lies_beside_it(tmp_path, found):
    for name in ("shared", "edge_agent"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("")
    assert in_python(tmp_path, FROM_PYTHON, found) == "10"
    assert "import isthmus first" in in_python(tmp_path, f"import shared; {FROM_PYTHON}", found)


@pytest.mark.first_case
@pytest.mark.parametrize(
    ("name", "command", "module"),
    [
        ("edge-agent", "--help", "rich"),
        ("edge-agent", "config", "pydantic"),
        ("edge-agent", "model", "torch"),
        ("edge-agent", "run", "torch"),
        ("cloud-trainer", "--help", "rich"),
        ("cloud-trainer", "config", "pydantic"),
        ("cloud-trainer", "serve", "torch"),
    ],
)
def test_ctrl_c_while_modules_are_imported_is_one_sentence(tmp_path, name, command, module):
    (tmp_path / f"{module}.py").write_text("import threading\nprint('importing')\nthreading.Event().wait()\n")
    process = started(SCRIPTS[name], command, folder=tmp_path)
    assert process.stdout.readline() == "importing\n"
    process.send_signal(signal.SIGINT)
    assert_one_sentence(name, ended(process), ExitCode.INTERRUPTED, "interrupted")


@pytest.mark.first_case
@pytest.mark.parametrize("name", SCRIPTS)
def test_the_version_is_told(tmp_path, name):
    done = ended(started(SCRIPTS[name], "--version", folder=tmp_path))
    assert done.stdout == f"{name} {version('isthmus')}, protocol {PROTOCOL_VERSION}\n", done.stderr
