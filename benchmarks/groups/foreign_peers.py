"""Peers of a group that run under a Python of their own, because their libraries are not those of this project."""

import json
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from benchmarks.net.namespaces import Namespace
from edge_agent.planning.schedules import Layers
from shared.errors import IsthmusError

PORT = 29522


@dataclass(frozen=True)
class ForeignPeer:
    """A system that trains a model with a tensor for each layer, whose computing sleeps."""

    name: str
    worker: str
    """Program of each of its processes, beside this file: `PYTHON FILE ROLE HUB:PORT OWN_ADDRESS`."""
    hub_roles: Sequence[str]
    """Processes at the trainer's place. Each member has one with the role `member`."""
    store: str | None = None
    """Kind of MXNet's KVStore."""


FLOWER = ForeignPeer("Flower", "flower_worker.py", ("server",))
MXNET = tuple(
    ForeignPeer(f"MXNet, {store}", "mxnet_worker.py", ("scheduler", "server"), store)
    for store in ("dist_sync", "dist_sync_p3")
)


def step_seconds(
    peer: ForeignPeer, python: Path, layers: Layers, hub: Namespace, members: Sequence[Namespace], steps: int
) -> list[float]:
    """Return the seconds of each step but the first one.

    python: has the peer's libraries. hub: the trainer's machine. Raises IsthmusError.
    """
    told = json.dumps(
        {
            "elements": [size // 4 for size in layers.bytes],
            "forward_seconds": layers.forward_seconds,
            "backward_seconds": layers.backward_seconds,
            "members": len(members),
            "steps": steps,
            "store": peer.store,
        }
    )
    worker = [str(python), str(Path(__file__).with_name(peer.worker))]
    places = [*((hub, role) for role in peer.hub_roles), *((machine, "member") for machine in members)]
    with ExitStack() as stack:
        processes = []
        for machine, role in places:
            process = subprocess.Popen(
                machine.command([*worker, role, f"{hub.address}:{PORT}", machine.address]),
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
        printed = ""
        for process in reversed(processes):  # where a member fails, the others would wait for it
            output, errors = process.communicate()
            if process.returncode:
                raise IsthmusError(f"{peer.name} failed: {errors[-500:]}")
            printed += output
    return [end - begin for begin, end in pairwise(json.loads(printed))]
