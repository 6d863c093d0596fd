"""A trainer as a process of its own, for measurements."""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager


@contextmanager
def trainer_process(*overrides: str, wrapper: Sequence[str] = (), listen: str = "127.0.0.1:0") -> Iterator[str]:
    """Start a trainer that allows the benchmarks' models; yields its address.

    wrapper: a command to run it under (a network namespace, a core).
    """
    flags = [f"server.listen={listen}", 'models.allowed=["benchmarks", "shared.model.zoo"]', "log.format=json"]
    command = [*wrapper, sys.executable, "-m", "cloud_trainer.main", "serve"]
    process = subprocess.Popen(
        [*command, *(f"--set={flag}" for flag in [*flags, *overrides])], stderr=subprocess.PIPE, text=True
    )
    try:
        yield _address(process)
    finally:
        process.terminate()
        process.communicate()


def _address(process: subprocess.Popen[str]) -> str:
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("{") and (event := json.loads(line)).get("event") == "listening":
            return str(event["address"])
        sys.stderr.write(line)
    raise SystemExit(f"the trainer ended with {process.wait()} before it listened")
