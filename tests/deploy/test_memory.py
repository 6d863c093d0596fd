"""An agent with too little memory: killed twice by the kernel and told what fits, and without room in /dev/shm told of that."""

import os
import re
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from shared.errors import ExitCode
from tests.conftest import ROOT
from tests.support.running import run_agent, trainer_process

pytestmark = [pytest.mark.root, pytest.mark.timeout(900)]

ROOT_GROUP = Path("/sys/fs/cgroup")
BATCH, FEW = 1024, 16


class Group:
    """A control group, in either version of these."""

    def __init__(self, folder, limit_file, peak_file):
        self._folder, self._limit, self._peak = folder, folder / limit_file, folder / peak_file

    def limit(self, limit_bytes):
        self._limit.write_text(str(limit_bytes))

    def run(self, *arguments):
        """Run an agent in it. Returns how it ended."""

        def enter():
            (self._folder / "cgroup.procs").write_text(str(os.getpid()))

        command = [sys.executable, "-m", "edge_agent.main", *arguments]
        return subprocess.run(
            command, cwd=ROOT, preexec_fn=enter, capture_output=True, text=True, timeout=240, check=False
        )

    def peak_bytes(self):
        return int(self._peak.read_text())


@contextmanager
def group(name):
    is_first_version = (ROOT_GROUP / "memory").is_dir()
    folder = ROOT_GROUP / "memory" / name if is_first_version else ROOT_GROUP / name
    try:
        folder.mkdir()
    except OSError as reason:
        pytest.skip(f"no control group can be made: {reason}")
    try:
        names = (
            ("memory.limit_in_bytes", "memory.max_usage_in_bytes")
            if is_first_version
            else ("memory.max", "memory.peak")
        )
        if not (folder / names[0]).exists():
            pytest.skip("control groups do not bound memory here")
        yield Group(folder, *names)
    finally:
        folder.rmdir()


def test_a_run_that_the_kernel_kills_twice_ends_with_a_batch_that_fits(tmp_path):
    with trainer_process("compute.threads=1", f"checkpoints.location={tmp_path / 'trainer'}") as (_, address):

        def training(batch, cut=3):
            settings = [
                f"data.batch_size={batch}",
                f"deployment.cut={cut}",
                "model.kwargs={width=64}",
                "training.max_steps=3",
                "compute.threads=1",
                "compute.device=cpu",
                "control.listen=none",
                f"checkpoints.location={tmp_path / 'agent'}",
                f"trainer.address={address}",
            ]
            return [f"--set={one}" for one in settings]

        with group(f"isthmus-few-{os.getpid()}") as few, group(f"isthmus-{os.getpid()}") as short:
            assert few.run("run", *training(FEW)).returncode == ExitCode.OK
            short.limit(few.peak_bytes() + 200 * 1024**2)
            for _ in range(2):
                assert short.run("run", "--resume", *training(BATCH)).returncode == -signal.SIGKILL
            third = short.run("run", "--resume", *training(BATCH))
            assert third.returncode == ExitCode.UNFIT, third.stderr
            sentence = third.stderr.splitlines()[-1]
            assert "the kernel has killed this run twice for memory at step 0" in sentence
            found = re.search(
                r"data\.batch_size = (\d+)(?: or deployment\.cut = (\d+))?, after `edge-agent (.*?)`", sentence
            )
            assert found is not None, sentence
            batch, cut, forget = found.groups()
            command = [sys.executable, "-m", "edge_agent.main", *forget.split()]
            subprocess.run([*command, f"--set=checkpoints.location={tmp_path / 'agent'}"], cwd=ROOT, check=True)
            assert BATCH / 8 < int(batch) < BATCH
            for fitting in (training(batch), *([training(BATCH, cut)] if cut else [])):
                done = short.run("run", *fitting)
                assert done.returncode == ExitCode.OK, done.stderr


@pytest.mark.parametrize(("room", "code"), [("256k", ExitCode.DATA), ("64m", ExitCode.OK)])
def test_processes_that_load_need_room_in_shared_memory(room, code):
    with trainer_process("compute.threads=1") as (_, address):
        settings = [
            "data.workers=1",
            "data.batch_size=1024",
            "training.max_steps=2",
            "compute.threads=1",
            "compute.device=cpu",
            "control.listen=none",
            "checkpoints.location=none",
            f"trainer.address={address}",
        ]
        mounted = f'mount -t tmpfs -o size={room} tmpfs /dev/shm && exec "$@"'
        under = ["unshare", "--mount", "sh", "-c", mounted, "sh"]
        done = run_agent("run", *(f"--set={one}" for one in settings), under=under)
        assert done.returncode == code, done.stderr
        if code is ExitCode.DATA:
            assert "data.workers = 1: batches that are read ahead take" in done.stderr.splitlines()[-1]
            assert "of /dev/shm, which has 262.1 kB left; give the container more" in done.stderr.splitlines()[-1]
