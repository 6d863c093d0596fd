"""gRPC's settings: they are set before its import, because it reads them once."""

import os
import subprocess
import sys

import pytest

TOLD = "tcp_frame_size_tuning,tcp_rcv_lowat"
LOOKING = """
import importlib, os, sys

class Looking:
    def find_spec(self, name, path=None, target=None):
        if name == "grpc":
            sys.exit(os.environ.get("GRPC_EXPERIMENTS"))

sys.meta_path.insert(0, Looking())
for module in sys.argv[1:]:
    importlib.import_module(module)
"""
AGENT, TRAINER = ("edge_agent.main", "edge_agent.run"), ("cloud_trainer.main", "cloud_trainer.server")


def told(modules, **environment):
    """Return the settings that gRPC finds when the first of these modules that needs it imports it."""
    others = {name: value for name, value in os.environ.items() if name != "GRPC_EXPERIMENTS"}
    command = [sys.executable, "-c", LOOKING, *modules]
    return subprocess.run(command, env=others | environment, capture_output=True, text=True, check=False).stderr.strip()


@pytest.mark.parametrize(
    "modules",
    [
        pytest.param(AGENT, id="agent"),
        pytest.param(AGENT[1:], id="function", marks=pytest.mark.slow),
        pytest.param(TRAINER, id="trainer"),
        pytest.param(("benchmarks.overhead",), id="overhead", marks=pytest.mark.slow),
        pytest.param(("benchmarks.support.bare_stream",), id="plain gRPC"),
    ],
)
def test_grpc_is_told_before_it_is_imported(modules):
    assert told(modules) == TOLD


def test_the_users_settings_stay():
    assert told(TRAINER, GRPC_EXPERIMENTS="event_engine_fork") == "event_engine_fork"
