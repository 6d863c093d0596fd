"""`buf curl`, which stands for grpcurl: a client that knows no file of ours and learns the contract by reflection."""

import json
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.support.running import SCRIPTS

PATIENCE_SECONDS = 180.0


def _command(target: str, *arguments: str, method: str, data: Any) -> list[str]:
    """target: host:port, or unix:/path."""
    command = [str(SCRIPTS / "buf"), "curl", "--protocol", "grpc", "--http2-prior-knowledge", *arguments]
    if data is not None:
        command += ["-d", json.dumps(data)]
    if target.startswith("unix:"):
        command += ["--unix-socket", target.removeprefix("unix:")]
        target = "localhost"
    return [*command, f"http://{target}/{method}"]


def curl(target: str, *arguments: str, method: str = "", data: Any = None) -> tuple[int, str, str]:
    """A call, to its end: exit code, standard output, standard error."""
    done = subprocess.run(
        _command(target, *arguments, method=method, data=data),
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@contextmanager
def curl_stream(target: str, method: str, data: Any) -> Iterator[Iterator[Any]]:
    """The messages of a call that goes on, as they come; given up on the way out."""
    with subprocess.Popen(_command(target, method=method, data=data), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        patience = threading.Timer(PATIENCE_SECONDS, process.kill)
        patience.start()
        try:
            yield _objects(iter(process.stdout.readline, ""))
        finally:
            patience.cancel()
            process.kill()


def _objects(lines: Iterator[str]) -> Iterator[Any]:
    """JSON objects that follow one another, each over as many lines as it likes."""
    text = ""
    for line in lines:
        text += line
        try:
            value = json.loads(text)
        except ValueError:
            continue
        text = ""
        yield value
