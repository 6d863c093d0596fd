"""Modules that a command does not need are not imported: torch alone takes a second, and more on a weak device."""

import subprocess
import sys

import pytest

import isthmus
from edge_agent.planning import profile_to_json
from shared import errors
from shared.errors import ExitCode
from tests.conftest import ROOT
from tests.support.planning.cases import small_profile

DEAR = (
    "torch",
    "grpc",
    "numpy",
    "scipy",
    "matplotlib",
    "structlog",
    "prometheus_client",
    "fsspec",
    "cryptography",
    "pydantic",
    "rich",
    "google.protobuf",
    "shared.config",
    "shared.placement",
)
SCRIPT = (
    "import atexit, isthmus_entry_points, sys\n"
    "atexit.register(lambda: print('imported', *(name for name in {dear} if name in sys.modules), file=sys.stderr))\n"
    "isthmus_entry_points.{function}()"
)
AGENT = (
    "run --help",
    "profile --help",
    "model --help",
    "placement --help",
    "doctor --help",
    "status --help",
    "plan --help",
    "simulate --help",
)
AGENT_CONFIG = (
    "config",
    "config --example",
    "config --set=training.optimizer.name=lion --set=deployment.codec=uniform8",
)
TRAINER = ("serve --help", "status --help", "token --help", "certs --help")
TRAINER_CONFIG = ("config --example",)

CONFIGURED = {"pydantic", "shared.config"}
"""The modules that read a configuration, or a profile."""
QUICK = ("run --help", "serve --help", "doctor --help", "config --example")
"""Commands that `make test` tries."""


def imported(function: str, arguments: str, folder, *, code: int = 0) -> set[str]:
    """Return the members of `DEAR` that a command has imported when it ends."""
    (folder / "profile.json").write_text(profile_to_json(small_profile()))
    script = SCRIPT.format(dear=DEAR, function=function)
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments.split()],
        cwd=folder,
        env={"PYTHONPATH": str(ROOT), "HOME": str(folder)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == code, done.stderr
    first, *names = done.stderr.splitlines()[-1].split()
    assert first == "imported"
    return set(names)


@pytest.mark.parametrize("function", ["edge_agent", "cloud_trainer"])
def test_the_help_of_a_program_imports_what_prints_it_alone(tmp_path, function):
    assert imported(function, "--help", tmp_path) == {"rich"}


@pytest.mark.first_case
@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        pytest.param(function, each, marks=[] if each in QUICK else pytest.mark.slow)
        for function, commands in (("edge_agent", AGENT), ("cloud_trainer", TRAINER))
        for each in commands
    ],
    ids=lambda value: value,
)
def test_the_help_of_a_command_imports_what_typer_does_alone(tmp_path, function, arguments):
    assert imported(function, arguments, tmp_path) == {"pydantic", "rich"}


@pytest.mark.first_case
@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        pytest.param(function, each, marks=[] if each in QUICK else pytest.mark.slow)
        for function, commands in (("edge_agent", AGENT_CONFIG), ("cloud_trainer", TRAINER_CONFIG))
        for each in commands
    ],
    ids=lambda value: value,
)
def test_a_command_that_runs_no_model_imports_what_reads_a_configuration_alone(tmp_path, function, arguments):
    assert imported(function, arguments, tmp_path) == CONFIGURED


@pytest.mark.first_case
@pytest.mark.parametrize("function", ["edge_agent", "cloud_trainer"])
def test_a_call_of_the_control_service_imports_grpc_and_no_other_dear_module(tmp_path, function):
    nobody = f"status --control=unix:{tmp_path}/none.sock"
    assert imported(function, nobody, tmp_path, code=ExitCode.UNREACHABLE) == {"grpc", "google.protobuf", *CONFIGURED}


def test_planning_imports_numpy_and_what_reads_a_profile_alone(tmp_path):
    arguments = "plan --profile profile.json --uplink 8mbit --downlink 8mbit --bits 8,32"
    assert imported("edge_agent", arguments, tmp_path) == {"numpy", "shared.placement", *CONFIGURED}


def test_simulating_imports_no_torch(tmp_path):
    (tmp_path / "link.csv").write_text("second,bytes_per_second\n0,1000000\n60,1000000\n")
    seen = imported("edge_agent", "simulate --profile profile.json --trace link.csv", tmp_path)
    assert not seen & {"torch", "grpc"}


def test_forgetting_a_session_imports_what_reads_files_alone(tmp_path):
    refused = imported("edge_agent", "forget nobodys", tmp_path, code=ExitCode.CONFIG)
    assert refused == {"structlog", "rich", "fsspec", *CONFIGURED}  # structlog imports rich


def test_the_agent_can_be_imported_for_its_configuration_alone():
    script = "import sys; from isthmus import EdgeConfig; EdgeConfig(); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True)


def test_a_configuration_is_read_without_the_source_of_its_sections():
    script = "import isthmus, linecache; isthmus.load_config(isthmus.EdgeConfig, None); print(linecache.cache)"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True, capture_output=True, text=True)
    assert done.stdout == "{}\n"


def test_a_notebook_completes_what_the_agent_exports_without_importing_it():
    shown = "import sys, isthmus; print(*dir(isthmus)); assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", shown], cwd=ROOT, check=True, capture_output=True, text=True)
    assert {"train", "run_training", "EdgeConfig", "Statistics"} <= set(done.stdout.split())


@pytest.mark.slow
def test_what_the_agent_exports_is_there():
    script = "import isthmus; assert all(getattr(isthmus, name) for name in isthmus.__all__)"
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True)


def test_the_agent_exports_an_error_for_each_exit_code_that_a_run_may_end_with():
    known = {kind for kind in vars(errors).values() if isinstance(kind, type) and "exit_code" in vars(kind)}
    exported = {getattr(isthmus, name) for name in isthmus.__all__ if name.endswith("Error")}
    assert exported == known - {errors.DifferentError, errors.UnfitError}, "those of replay and doctor are no run's"


@pytest.mark.slow
def test_without_a_page_nothing_of_one_is_loaded():
    script = "import sys, edge_agent.run, cloud_trainer.server; print(*(name for name in sys.modules if 'shared.web' in name))"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
