"""One stage of PyTorch's own pipeline, in a process of its own: the peer of `benchmarks.peer` and `benchmarks.chain`.

`python -m benchmarks.support.peer_stage RANK MASTER MICROBATCHES STEPS BATCH NETWORK CUT,...`: rank 0 is the edge, MASTER its
host:port. It runs Schedule1F1B over gloo on the same network, data and optimizer as our run, with a loader, and prints the
moments at which its steps ended as a JSON array.
"""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.utils.data import DataLoader

from benchmarks.networks import RandomImages, mobilenet, small_cnn
from shared.concurrency.heap import keep_freed_memory
from shared.errors import IsthmusError

BATCH = 32
LEARNING_RATE, MOMENTUM = 0.01, 0.9
OPTIMIZER_FLAG = f'training.optimizer={{name="sgd", learning_rate={LEARNING_RATE}, momentum={MOMENTUM}}}'
NETWORKS = {"small_cnn": small_cnn, "mobilenet": mobilenet}


def small_cnn_flags(batch: int, steps: int, codec: str, staleness: int) -> list[str]:
    """An agent's flags for the small network, its data and the optimizer: one epoch of `steps` steps of `batch` samples."""
    return [
        'model.factory="benchmarks.networks:small_cnn"',
        f'data.train={{factory="benchmarks.networks:RandomImages", kwargs={{samples={batch * steps}}}}}',
        f"data.batch_size={batch}",
        "training.epochs=1",
        "training.evaluate_every_epochs=0",
        OPTIMIZER_FLAG,
        "deployment.cut=1",
        f"deployment.staleness={staleness}",
        f"deployment.codec={codec}",
        f"deployment.downlink_codec={codec}",
    ]


def mobilenet_flags(batch: int) -> tuple[str, ...]:
    """An agent's flags of MobileNetV2 on random images, so many a batch, without an end."""
    return (
        'model.factory="benchmarks.networks:mobilenet"',
        f'data.train={{factory="benchmarks.networks:RandomImages", kwargs={{samples={batch * 4}}}}}',
        f"data.batch_size={batch}",
        "training.epochs=100000",
        "training.evaluate_every_epochs=0",
        OPTIMIZER_FLAG,
    )


@dataclass(frozen=True)
class Pipeline:
    """The settings that all ranks share."""

    master: str
    microbatches: int
    steps: int
    batch: int
    network: str = "small_cnn"
    cuts: tuple[int, ...] = (1,)
    """Modules before each rank but the first."""


def run(rank: int, pipeline: Pipeline) -> list[float]:
    """Train; rank 0 feeds images, the last one has the labels."""
    ranks, microbatches = len(pipeline.cuts) + 1, pipeline.microbatches
    keep_freed_memory()  # as ours does
    dist.init_process_group("gloo", init_method=f"tcp://{pipeline.master}", rank=rank, world_size=ranks)
    torch.manual_seed(0)
    whole = NETWORKS[pipeline.network]()
    first, stop = (0, *pipeline.cuts, len(whole))[rank : rank + 2]
    module = whole[first:stop]
    optimizer = torch.optim.SGD(module.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)
    stage = PipelineStage(module, rank, ranks, torch.device("cpu"))
    # With fewer microbatches both schedules do the same, but torch's 1F1B wants one a stage at least.
    schedule = (Schedule1F1B if microbatches >= ranks else ScheduleGPipe)(
        stage, microbatches, loss_fn=nn.functional.cross_entropy
    )
    ends = []
    data = RandomImages(pipeline.batch * pipeline.steps)
    images = iter(DataLoader(data, pipeline.batch))
    for step in range(pipeline.steps):
        if rank == 0:
            schedule.step(next(images)[0], return_outputs=False)
        elif rank == ranks - 1:
            samples = range(step * pipeline.batch, (step + 1) * pipeline.batch)
            labels = torch.tensor([data.label(sample) for sample in samples])
            schedule.step(target=labels, losses=[], return_outputs=False)
        else:
            schedule.step()
        optimizer.step()
        optimizer.zero_grad()
        ends.append(time.monotonic())
    dist.destroy_process_group()
    return ends


def command(rank: int, pipeline: Pipeline) -> list[str]:
    """The command line of a rank, which prints the moments at which its steps ended."""
    counts = map(str, (pipeline.microbatches, pipeline.steps, pipeline.batch))
    cut = [pipeline.network, ",".join(map(str, pipeline.cuts))]
    return [sys.executable, "-m", "benchmarks.support.peer_stage", str(rank), pipeline.master, *counts, *cut]


def pipeline_ends(pipeline: Pipeline, wrappers: Sequence[Sequence[str]]) -> list[float]:
    """Return the times at which the steps of a whole run ended on rank 0. wrappers: a command for each rank to run
    under. Raises IsthmusError."""
    ranks = [
        subprocess.Popen(
            [*wrapper, *command(rank, pipeline)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for rank, wrapper in enumerate(wrappers)
    ]
    printed = [rank.communicate() for rank in ranks]
    if any(rank.returncode for rank in ranks):
        raise IsthmusError(f"the peer failed: {' '.join(errors[-500:] for _, errors in printed)}")
    ends: list[float] = json.loads(printed[0][0])
    return ends


def main() -> None:
    """Parse, run, print."""
    rank, master, microbatches, steps, batch, network, cuts = sys.argv[1:]
    # Gloo looks for the host's name otherwise, which a namespace cannot resolve.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", next(name for _, name in socket.if_nameindex() if name != "lo"))
    torch.set_num_threads(1)
    at = tuple(int(cut) for cut in cuts.split(","))
    pipeline = Pipeline(master, int(microbatches), int(steps), int(batch), network, at)
    print(json.dumps(run(int(rank), pipeline)))


if __name__ == "__main__":
    main()
