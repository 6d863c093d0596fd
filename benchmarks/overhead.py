"""What split training costs beyond its parts: `python -m benchmarks.overhead`.

In one run, per feature size: a step of the split system over loopback (K = 0, fp32), T1 and T3 measured alone, and the
time that a raw TCP socket takes for the same bytes both ways between two processes. Goal: split - (T1 + T3 + socket) is
at most 3 ms or 5 % of the step, whichever is larger.
"""

import itertools
import multiprocessing
import socket
import statistics
import time

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.machine import machine
from benchmarks.processes import trainer_process
from edge_agent import EdgeConfig, train
from shared.config import load_config
from shared.model.build import build_model
from shared.model.chain import build_chain
from shared.model.losses import LossHead
from shared.model.policies import Replay
from shared.model.recipe import Recipe
from shared.model.stage import Stage

BATCH = 32
CASES = {"0.1 MB": (8, 10), "1 MB": (32, 16), "4 MB": (32, 32), "16 MB": (128, 32)}
"""Channels and image size that make the feature so large."""
STEPS, WARM_UP = 60, 10


def config(channels: int, size: int, address: str) -> EdgeConfig:
    """A run of that feature size against the trainer at `address`."""
    flags = [
        f"trainer.address={address}",
        'model.factory="benchmarks.networks:two_convolutions"',
        f"model.kwargs={{channels={channels}}}",
        f'data.train={{factory="benchmarks.networks:RandomImages", kwargs={{size={size}}}}}',
        f"training.max_steps={STEPS}",
        "training.epochs=100",
        "training.evaluate_every_epochs=0",
        "deployment.cut=1",
        "compute.threads=1",
        "compute.device=cpu",
    ]
    return load_config(EdgeConfig, None, flags, environ={})


def split_seconds(channels: int, size: int, address: str) -> list[float]:
    """Seconds of each step of the whole system."""
    moments: list[float] = []
    train(config(channels, size, address), lambda _progress: moments.append(time.perf_counter()))
    return [after - before for before, after in itertools.pairwise(moments)][WARM_UP:]


def alone_seconds(channels: int, size: int) -> tuple[list[float], list[float], int]:
    """T1 and T3 of each step without any network, and the bytes of the feature."""
    module = build_model("benchmarks.networks:two_convolutions", {"channels": channels}, 0)
    inputs, labels = torch.randn(BATCH, 3, size, size), torch.randint(10, (BATCH,))
    chain = build_chain(module, inputs)
    run = config(channels, size, "127.0.0.1:1").training
    recipe = Recipe(
        optimizer=run.optimizer, schedule=run.schedule, loss=run.loss, seed=0, steps_per_epoch=1, total_steps=STEPS
    )
    cpu = torch.device("cpu")
    edge, cloud = Replay(Stage(chain, 0, 1, recipe, cpu)), Stage(chain, 1, 2, recipe, cpu)
    head = LossHead("cross_entropy", None)
    edge_seconds, cloud_seconds = [], []
    for step in range(STEPS):
        started = time.perf_counter()
        feature = edge.forward(step, inputs, alone=True)
        forward_done = time.perf_counter()
        graph = cloud.forward(step, feature, input_gradient=True)
        _, gradient = head.gradient(graph.output, labels)
        feature_gradient = cloud.backward(graph, gradient)
        cloud.update(step)
        cloud_done = time.perf_counter()
        assert feature_gradient is not None
        edge.backward(step, feature_gradient)
        edge_seconds.append(time.perf_counter() - cloud_done + forward_done - started)
        cloud_seconds.append(cloud_done - forward_done)
    return edge_seconds[WARM_UP:], cloud_seconds[WARM_UP:], chain.features[1].bytes


def _echo(listener: socket.socket, count: int, rounds: int) -> None:
    connection, _ = listener.accept()
    buffer = memoryview(bytearray(count))
    for _ in range(rounds):
        _receive(connection, buffer)
        connection.sendall(buffer)


def _receive(connection: socket.socket, buffer: memoryview) -> None:
    received = 0
    while received < len(buffer):
        received += connection.recv_into(buffer[received:])


def socket_seconds(count: int) -> list[float]:
    """Seconds for `count` bytes to another process and back over plain TCP."""
    listener = socket.create_server(("127.0.0.1", 0))
    peer = multiprocessing.get_context("fork").Process(target=_echo, args=(listener, count, STEPS))
    peer.start()
    seconds = []
    with socket.create_connection(listener.getsockname()) as connection:
        buffer = memoryview(bytearray(count))
        for _ in range(STEPS):
            started = time.perf_counter()
            connection.sendall(buffer)
            _receive(connection, buffer)
            seconds.append(time.perf_counter() - started)
    peer.join()
    listener.close()
    return seconds[WARM_UP:]


def _shown(seconds: list[float]) -> str:
    low, middle, high = statistics.quantiles(seconds, n=4)
    return f"{middle * 1e3:.2f} ({low * 1e3:.2f} to {high * 1e3:.2f})"


def main() -> None:
    """Measure every case and print the table."""
    torch.set_num_threads(1)
    sockets = {case: socket_seconds(BATCH * c * s * s * 4) for case, (c, s) in CASES.items()}  # before gRPC: it forks
    table = Table("feature", "split step", "T1 alone", "T3 alone", "socket", "overhead", "allowed", "goodput / socket")
    with trainer_process("compute.threads=1", "compute.device=cpu") as address:
        for case, (channels, size) in CASES.items():
            split = split_seconds(channels, size, address)
            edge, cloud, count = alone_seconds(channels, size)
            raw = sockets[case]
            step, t1, t3, wire = map(statistics.median, (split, edge, cloud, raw))
            overhead, allowed = step - t1 - t3 - wire, max(0.003, 0.05 * step)
            goodput = 2 * count / max(step - t1 - t3, 1e-9)
            table.add_row(
                f"{case} ({count:,} bytes)",
                *map(_shown, (split, edge, cloud, raw)),
                f"{overhead * 1e3:.2f}",
                f"{allowed * 1e3:.2f} {'kept' if overhead <= allowed else 'MISSED'}",
                f"{goodput / (2 * count / wire):.2f}",
            )
    console = Console(width=150)
    console.print(f"milliseconds, median (quartiles) of {STEPS - WARM_UP} steps; {machine()}")
    console.print(table)


if __name__ == "__main__":
    main()
