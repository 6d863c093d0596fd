"""Flower as a peer of a group: federated averaging with one local step (`flower_worker`).

It runs under a Python of its own, because its libraries are not those of this project.
"""

import json
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

from shared.errors import IsthmusError
from shared.planning.schedules import Layers

NAME = "Flower"
PORT = 29522


def step_seconds(
    python: Path, layers: Layers, host: str, wrappers: Sequence[Sequence[str]], rounds: int
) -> list[float]:
    """Return the seconds of each round but the first one, of a model with a tensor for each layer.

    python: has `flwr`. host: the server's address. wrappers: a command to run under, for the server and for each client. Raises
    IsthmusError.
    """
    told = json.dumps(
        {
            "elements": [size // 4 for size in layers.bytes],
            "seconds": sum(layers.forward_seconds) + sum(layers.backward_seconds),
            "clients": len(wrappers) - 1,
            "rounds": rounds,
        }
    )
    worker = [str(python), str(Path(__file__).with_name("flower_worker.py"))]
    with ExitStack() as stack:
        processes = []
        for number, wrapper in enumerate(wrappers):
            role = "client" if number else "server"
            process = subprocess.Popen(
                [*wrapper, *worker, role, f"{host}:{PORT}"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            stack.callback(process.kill)
            assert process.stdin is not None
            process.stdin.write(told)
            process.stdin.close()
            process.stdin = None  # or `communicate` would flush it
            processes.append(process)
        printed = [process.communicate() for process in processes]
    if any(process.returncode for process in processes):
        raise IsthmusError(f"Flower failed: {' '.join(errors[-500:] for _, errors in printed)}")
    return [end - begin for begin, end in pairwise(json.loads(printed[0][0]))]
