"""One rank of PyTorch's DistributedDataParallel over gloo, in a process of its own: the peer of a group whose blocks sleep.

`python -m benchmarks.groups.ddp RANK MASTER` reads a `Training` from standard input, MASTER being the host:port of rank 0. It
trains the same blocks with the same optimizer as our members, and prints the moments at which its steps ended as a JSON array.
"""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.networks import weighted_blocks
from shared.concurrency.heap import keep_freed_memory
from shared.errors import IsthmusError

PORT = 29521


@dataclass(frozen=True)
class Training:
    """The settings that all ranks share."""

    amounts: Sequence[tuple[float, float]]
    sizes: Sequence[int]
    ranks: int
    steps: int
    batch: int
    bucket_megabytes: float


def step_seconds(training: Training, master: str, wrappers: Sequence[Sequence[str]], warm_up: int) -> list[float]:
    """Return the seconds of each step of rank 0, without those at the begin.

    wrappers: a command for each rank to run under. master: the address of rank 0. Raises IsthmusError.
    """
    told = json.dumps(asdict(training))
    ranks = [
        subprocess.Popen(
            [*wrapper, sys.executable, "-m", "benchmarks.groups.ddp", str(rank), f"{master}:{PORT}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, wrapper in enumerate(wrappers)
    ]
    for rank in ranks:
        assert rank.stdin is not None
        rank.stdin.write(told)
        rank.stdin.close()
        rank.stdin = None  # or `communicate` would flush it
    printed = [rank.communicate() for rank in ranks]
    if any(rank.returncode for rank in ranks):
        raise IsthmusError(f"the peer failed: {' '.join(errors[-500:] for _, errors in printed)}")
    return [end - begin for begin, end in pairwise(json.loads(printed[0][0])[warm_up:])]


def run(rank: int, master: str, training: Training) -> list[float]:
    """Train; returns the moments at which the steps ended."""
    keep_freed_memory()  # as ours does
    dist.init_process_group("gloo", init_method=f"tcp://{master}", rank=rank, world_size=training.ranks)
    blocks = weighted_blocks(training.amounts, training.sizes)
    module = DistributedDataParallel(
        blocks, bucket_cap_mb=training.bucket_megabytes, broadcast_buffers=False, gradient_as_bucket_view=True
    )
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    inputs, labels = torch.randn(training.batch, 3, 1, 1), torch.zeros(training.batch, dtype=torch.long)
    ends = []
    for _ in range(training.steps):
        nn.functional.cross_entropy(module(inputs), labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        ends.append(time.monotonic())
    dist.destroy_process_group()
    return ends


def main() -> None:
    """Parse, run, print."""
    rank, master = sys.argv[1:]
    # Gloo looks for the host's name otherwise, which a namespace cannot resolve.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", next(name for _, name in socket.if_nameindex() if name != "lo"))
    torch.set_num_threads(1)
    print(json.dumps(run(int(rank), master, Training(**json.load(sys.stdin)))))


if __name__ == "__main__":
    main()
