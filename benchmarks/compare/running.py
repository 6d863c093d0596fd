"""One run of a system's program, as its user starts it: processes of their own, in a folder of their own."""

import itertools
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from benchmarks.compare.systems import PROGRAMS, SHARED_FILE, System
from shared.errors import IsthmusError

PREPARATION = "base.py"
"""Program of a training that makes what a user downloads."""
_READY_SECONDS = 300.0
_STEP = re.compile(r"step \d+ at ([\d.]+)")
_TORCHVISION = '''
import sys


class Operators:
    """Declares operators before torchvision is imported: one that is built for CUDA finds none beside a CPU build of torch."""

    def find_spec(self, name, *_):
        if name == "torchvision":
            sys.meta_path.remove(self)
            import torch

            self.library = torch.library.Library("torchvision", "DEF")
            for operator in ("nms", "qnms"):
                self.library.define(operator + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


sys.operators = Operators()
sys.meta_path.insert(0, sys.operators)
'''


@dataclass(frozen=True)
class Done:
    """A finished run."""

    folder: Path
    printed: str
    seconds: float
    """From the start of the command that trains to its end."""
    processor_seconds: float
    """Time of all processes on processors, servers too."""

    @property
    def step_seconds(self) -> list[float]:
        """Seconds between the ends of two steps, where the program prints these."""
        ends = [float(moment) for moment in _STEP.findall(self.printed)]
        return [after - before for before, after in itertools.pairwise(ends)]


def run(system: System, training: str, data: Path, folder: Path, python: Path, threads: int, steps: int) -> Done:
    """Run a program to its end. Raises IsthmusError, with what was printed, where its command fails.

    data: folder with the data, which is linked. folder: does not exist yet. python: has the system.
    """
    shutil.copytree(PROGRAMS / training, folder)
    for file in (SHARED_FILE, "../order.py"):
        for place in (folder, folder / "flower"):
            shutil.copy(PROGRAMS / training / file, place)
    for path in data.iterdir():
        (folder / path.name).symlink_to(path)
    with ExitStack() as stack:
        ports = [stack.enter_context(_free_port()) for _ in range(2)]
        for name, text in system.written.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(text.format(*ports))
        environment = _environment(folder, python, threads)
        log = stack.enter_context((folder / "printed.txt").open("w"))
        used = os.times()
        with ExitStack() as servers:
            for command, port in zip(system.servers, ports, strict=False):
                server = _start(command.format(*ports), folder, environment, log)
                servers.callback(_end, server)
                _wait_for(port, server, folder)
            began = time.monotonic()
            trained = _start(system.command.format(*ports, steps=steps), folder, environment, log)
            servers.callback(_end, trained)
            code = trained.wait()
            seconds = time.monotonic() - began
        after = os.times()
        processor = after.children_user + after.children_system - used.children_user - used.children_system
    printed = (folder / "printed.txt").read_text()
    if code:
        raise IsthmusError(f"{system.name} ended with {code}: {printed[-3000:]}")
    return Done(folder, printed, seconds, processor)


def prepare(training: str, data: Path, python: Path, threads: int) -> None:
    """Do in the folder of the data what a user does before the training, once. Raises IsthmusError where it fails."""
    program = PROGRAMS / training / PREPARATION
    if program.exists():
        with (data / "printed.txt").open("w") as log:
            code = _start(f"python {program}", data, _environment(data, python, threads), log).wait()
        if code:
            raise IsthmusError(f"{program} ended with {code}: {(data / 'printed.txt').read_text()[-3000:]}")
        shutil.rmtree(data / "site")
        (data / "printed.txt").unlink()


def _start(command: str, folder: Path, environment: dict[str, str], log: IO[str]) -> subprocess.Popen[bytes]:
    program, *arguments = command.split()
    found = shutil.which(program, path=environment["PATH"])
    if found is None:
        raise IsthmusError(f"there is no command {program} in {environment['PATH'].partition(':')[0]}")
    return subprocess.Popen(
        [found, *arguments],
        cwd=folder,
        env=environment,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGINT)
        process.wait()


def _environment(folder: Path, python: Path, threads: int) -> dict[str, str]:
    (folder / "site").mkdir()
    (folder / "site" / "sitecustomize.py").write_text("" if _has_torchvision(python) else _TORCHVISION)
    return {
        "PATH": f"{python.parent}:{os.environ['PATH']}",
        "HOME": str(folder),
        "PYTHONPATH": f"{folder}:{folder / 'site'}",
        "OMP_NUM_THREADS": str(threads),
        "FLWR_HOME": str(folder / "flwr"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "HF_HUB_OFFLINE": "1",
        "TERM": "dumb",
    }


def _has_torchvision(python: Path) -> bool:
    return subprocess.run([str(python), "-c", "import torchvision"], capture_output=True, check=False).returncode == 0


@contextmanager
def _free_port() -> Iterator[int]:
    """Reserve a port that others do not choose by themselves meanwhile."""
    with socket.socket() as held:
        for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
            held.setsockopt(socket.SOL_SOCKET, option, 1)
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


def _wait_for(port: int, server: subprocess.Popen[bytes], folder: Path) -> None:
    stop = time.monotonic() + _READY_SECONDS
    while server.poll() is None and time.monotonic() < stop:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise IsthmusError(f"a server did not begin: {(folder / 'printed.txt').read_text()[-3000:]}")
