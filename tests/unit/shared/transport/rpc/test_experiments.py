"""That gRPC is told how to read before it is imported: it looks once."""

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
            print(os.environ.get("GRPC_EXPERIMENTS"))

sys.meta_path.insert(0, Looking())
for module in sys.argv[1:]:
    importlib.import_module(module)
"""
AGENT, TRAINER = ("edge_agent.main", "edge_agent.run"), ("cloud_trainer.main", "cloud_trainer.server")


@pytest.mark.parametrize("modules", [AGENT, AGENT[1:], TRAINER], ids=["agent", "function", "trainer"])
@pytest.mark.parametrize(("before", "told"), [(None, TOLD), ("", ""), ("event_engine_fork", "event_engine_fork")])
def test_grpc_is_told_unless_the_user_has(modules, before, told):
    others = {name: value for name, value in os.environ.items() if name != "GRPC_EXPERIMENTS"}
    chosen = {} if before is None else {"GRPC_EXPERIMENTS": before}
    command = [sys.executable, "-c", LOOKING, *modules]
    done = subprocess.run(command, env=others | chosen, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [told]
