"""Processes of ours that begin in a moment: forked from one that has made the slow imports, and has opened no connection.

Where a test is about how a program begins, or about its environment, Python begins it instead.
"""

import importlib
import multiprocessing
import os
import pickle
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NoReturn

_REQUEST_BYTES = 200_000
_NUMBER = struct.Struct("i")
_requests: socket.socket | None = None


def prepare(folder: Path) -> None:
    """Fork the process that forks the others, before this one has threads. folder: in which they run."""
    global _requests
    importlib.import_module("tests.support.imported")
    _requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        _requests.close()
        os.chdir(folder)
        _serve(theirs)
    theirs.close()


class Forked:
    """A process that calls a function, with the methods of `subprocess.Popen` that tests need."""

    def __init__(
        self,
        target: Callable[..., object],
        *arguments: Any,
        stdout: int = subprocess.DEVNULL,
        stderr: int = subprocess.DEVNULL,
    ) -> None:
        """Begin. target: a function of a module. stdout, stderr: a file descriptor, DEVNULL or PIPE."""
        assert _requests is not None, "nothing is prepared to be forked"
        self.args: tuple[Any, ...] = (target, *arguments)
        self.returncode: int | None = None
        self._ended = threading.Lock()
        self.stdout, out = _file(stdout)
        self.stderr, err = _file(stderr)
        ours, theirs = os.pipe()
        request = pickle.dumps((target, arguments, dict(os.environ), _umask()))
        assert len(request) < _REQUEST_BYTES
        socket.send_fds(_requests, [request], [out, err, theirs])
        for descriptor in (out, err, theirs):
            os.close(descriptor)
        self._report = os.fdopen(ours, "rb", buffering=0)
        self.pid = self._reported()

    def fileno(self) -> int:
        """Returns a descriptor that can be read from once the process has ended."""
        return self._report.fileno()

    def poll(self) -> int | None:
        """Returns the exit code, as of `subprocess.Popen`; None while the process goes on."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the exit code; raises `subprocess.TimeoutExpired` after so many seconds."""
        if not select.select([self], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        with self._ended:
            if self.returncode is None:
                self.returncode = self._reported()
            return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def _reported(self) -> int:
        number: int = _NUMBER.unpack(self._report.read(_NUMBER.size))[0]
        return number


def program(module: str, *arguments: str) -> None:
    """Be the program whose `main` this module has."""
    main = importlib.import_module(module)
    sys.argv = [str(main.__file__), *arguments]
    main.main()


def run(module: str, *arguments: str, timeout_seconds: float) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, and return all that it said."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = Forked(program, module, *arguments, stdout=out.fileno(), stderr=err.fileno())
        try:
            code = process.wait(timeout_seconds)
        finally:
            process.kill()
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(process.args, code, out.read(), err.read())


def _file(what: int) -> tuple[IO[str] | None, int]:
    """Return the file that is read here, if any, and the descriptor for the process."""
    if what == subprocess.PIPE:
        ours, theirs = os.pipe()
        return os.fdopen(ours), theirs
    return None, os.open(os.devnull, os.O_WRONLY) if what == subprocess.DEVNULL else os.dup(what)


def _umask() -> int:
    """Return the umask of this process, which can only be read by setting it."""
    os.umask(umask := os.umask(0))
    return umask


def _serve(requests: socket.socket) -> NoReturn:
    """Fork a process for every request, each beside one that waits for its end, until the last requester has gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        request, descriptors, _, _ = socket.recv_fds(requests, _REQUEST_BYTES, 3)
        if not request:
            os._exit(0)
        if os.fork() == 0:
            requests.close()
            _attend(request, *descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


def _attend(request: bytes, out: int, err: int, report: int) -> NoReturn:
    """Fork the process, and report its id and how it ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    process = multiprocessing.get_context("fork").Process(target=_be, args=(request, out, err, report))
    process.start()
    os.close(out)
    os.close(err)
    os.write(report, _NUMBER.pack(process.pid))
    process.join()
    with suppress(BrokenPipeError):  # nobody waits for it any more
        os.write(report, _NUMBER.pack(process.exitcode))
    os._exit(0)


def _be(request: bytes, out: int, err: int, report: int) -> None:
    """Call what is asked for."""
    os.dup2(out, 1)
    os.dup2(err, 2)
    for descriptor in (out, err, report):
        os.close(descriptor)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.stdin, sys.stdout = os.fdopen(0), os.fdopen(1, "w")
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace")
    target, arguments, environment, umask = pickle.loads(request)  # noqa: S301 - from the tests that have forked this
    os.umask(umask)
    os.environ.clear()
    os.environ.update(environment)
    target(*arguments)
