"""Following a run through all its processes: one id, in every line of every log, in what operators are shown, and in errors."""

import json
import signal
import subprocess
import urllib.request
from contextlib import ExitStack

import pytest

from shared.errors import ExitCode
from tests.support import forked
from tests.support.commands import spoken
from tests.support.experiments import flags
from tests.support.placement_kinds import PEERS_ALLOWED, flags_of
from tests.support.running import ALLOWED, StandardError

ENDLESS = [
    "training.epochs=100000",
    "training.max_steps=1000000",
    "checkpoints.every_steps=10",
    "metrics.listen=127.0.0.1:0",
]
COMMON = ["compute.threads=1", "compute.device=cpu", "log.format=json"]


class Process:
    """One of ours, whose standard error is kept whole."""

    def __init__(self, program, *arguments, under):
        set_flags = [f"--set={flag}" for flag in [*COMMON, *under]]
        called = [forked.program, f"{program}.main", *arguments, *set_flags]
        self.process = forked.Forked(*called, stderr=subprocess.PIPE)
        self.said = StandardError(self.process)

    def end(self, number=signal.SIGTERM):
        self.process.send_signal(number)
        code = self.process.wait(60)
        self.said.join()
        return code

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.said.join()


def trainer(name, folder, stack):
    kept = [f"checkpoints.location={folder / name}", f"control.listen=unix:{folder / name}.sock"]
    allowed = ["server.listen=127.0.0.1:0", f"models.allowed={ALLOWED}", PEERS_ALLOWED]
    started = stack.enter_context(Process("cloud_trainer", "serve", under=[*allowed, *kept]))
    return started, started.said.first_event("listening")["address"]


def shown(program, *arguments):
    return json.loads(forked.run(f"{program}.main", *arguments, "--json", timeout_seconds=60).stdout)


@pytest.mark.slow
def test_one_id_stands_in_every_line_of_all_processes_and_in_what_they_show(tmp_path):
    socket = f"unix:{tmp_path / 'edge.sock'}"
    with ExitStack() as stack:
        started = {name: trainer(name, tmp_path, stack) for name in ("near", "far")}
        addresses = {name: address for name, (_, address) in started.items()}
        placed = flags_of("chain of three", addresses, tmp_path)
        under = [
            *flags("cnn", "adamw"),
            *placed,
            *ENDLESS,
            f"checkpoints.location={tmp_path / 'edge'}",
            f"control.listen={socket}",
        ]
        agent = stack.enter_context(Process("edge_agent", "run", under=under))
        run = agent.said.first_event("session opened")["run"]
        agent.said.first_event("checkpoint at every worker")
        assert shown("edge_agent", "status", f"--control={socket}")["status"]["sessionId"] == run
        for name in started:
            (session,) = shown("cloud_trainer", "sessions", f"--control=unix:{tmp_path / name}.sock")["sessions"]
            assert session["runId"] == run
        (metrics,) = [entry["address"] for entry in agent.said.heard if entry["event"] == "metrics"]
        with urllib.request.urlopen(f"http://{metrics}/metrics", timeout=20) as page:
            assert f'isthmus_run_info{{run="{run}"}} 1.0' in page.read().decode()
        assert agent.end() == ExitCode.TERMINATED
        assert run in spoken(agent.said.last_lines[-1])
        (stopped,) = shown("edge_agent", "sessions", f"--set=checkpoints.location={tmp_path / 'edge'}")["sessions"]
        assert stopped["sessionId"] == run
        for process, _ in started.values():
            process.said.first_event("session closed")
        again = stack.enter_context(Process("edge_agent", "run", "--resume", under=under))
        assert again.said.first_event("session resumed")["run"] == run
        again.said.first_event("checkpoint at every worker")
        started["near"][0].end(signal.SIGKILL)
        again.end(signal.SIGKILL)
        started["far"][0].said.first_event("worker detached")
        started["far"][0].end()
        for each in (agent, again):
            entries = each.said.rest()
            names = [entry["event"] for entry in entries]
            first = next(names.index(name) for name in ("session opened", "session resumed") if name in names)
            assert [entry for entry in entries[first:] if entry.get("run") != run] == []
        for process, _ in started.values():
            entries = process.said.rest()
            about = [entry for entry in entries if entry["logger"] not in ABOUT_THE_PROCESS]
            assert len(about) > 10
            assert [entry for entry in about if entry.get("run") != run] == []


ABOUT_THE_PROCESS = {
    "asyncio",
    "grpc._cython.cygrpc",
    "cloud_trainer.server",
    "shared.control.serving",
    "shared.telemetry.metrics",
    "shared.telemetry.raw_lines",
}
"""Loggers of a trainer's whole process."""
