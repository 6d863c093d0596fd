"""One side of PyTorch's own pipeline, in a process of its own: the peer of `benchmarks.peer`.

`python -m benchmarks.support.peer_stage RANK MASTER MICROBATCHES STEPS BATCH`: rank 0 is the edge, MASTER its host:port. It
runs Schedule1F1B over gloo on the same network, data and optimizer as our run, and prints the moments at which its steps ended
as a JSON array.
"""

import json
import os
import socket
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from benchmarks.networks import RandomImages, small_cnn

BATCH = 32
LEARNING_RATE, MOMENTUM = 0.01, 0.9


def small_cnn_flags(batch: int, steps: int, codec: str, staleness: int) -> list[str]:
    """An agent's flags for the same network, data and optimizer: one epoch of `steps` steps of `batch` samples."""
    return [
        'model.factory="benchmarks.networks:small_cnn"',
        f'data.train={{factory="benchmarks.networks:RandomImages", kwargs={{samples={batch * steps}}}}}',
        f"data.batch_size={batch}",
        "training.epochs=1",
        "training.evaluate_every_epochs=0",
        f'training.optimizer={{name="sgd", learning_rate={LEARNING_RATE}, momentum={MOMENTUM}}}',
        "deployment.cut=1",
        f"deployment.staleness={staleness}",
        f"deployment.codec={codec}",
        f"deployment.downlink_codec={codec}",
    ]


def run(rank: int, master: str, microbatches: int, steps: int, batch: int) -> list[float]:
    """Train so many steps of `batch` samples; rank 0 feeds images, rank 1 has the labels."""
    dist.init_process_group("gloo", init_method=f"tcp://{master}", rank=rank, world_size=2)
    torch.manual_seed(0)
    module = small_cnn()[rank]
    optimizer = torch.optim.SGD(module.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)
    stage = PipelineStage(module, rank, 2, torch.device("cpu"))
    # With one microbatch both schedules do the same, but torch's 1F1B wants one a stage at least.
    schedule = (Schedule1F1B if microbatches > 1 else ScheduleGPipe)(
        stage, microbatches, loss_fn=nn.functional.cross_entropy
    )
    data = RandomImages(batch)
    images = torch.stack([data[index][0] for index in range(batch)])
    labels = torch.tensor([data[index][1] for index in range(batch)])
    ends = []
    for _ in range(steps):
        if rank == 0:
            schedule.step(images, return_outputs=False)
        else:
            schedule.step(target=labels, losses=[], return_outputs=False)
        optimizer.step()
        optimizer.zero_grad()
        ends.append(time.monotonic())
    dist.destroy_process_group()
    return ends


def main() -> None:
    """Parse, run, print."""
    rank, master, microbatches, steps, batch = sys.argv[1:]
    # Gloo looks for the host's name otherwise, which a namespace cannot resolve.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", next(name for _, name in socket.if_nameindex() if name != "lo"))
    torch.set_num_threads(1)
    print(json.dumps(run(int(rank), master, int(microbatches), int(steps), int(batch))))


if __name__ == "__main__":
    main()
