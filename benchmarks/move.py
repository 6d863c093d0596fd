"""Pause of training in a handover from one trainer to another: `python -m benchmarks.move [--json PATH] [--repeats N]`.

Agent and two trainers in network namespaces, the trainers 20 ms from the device and linked to each other at a given rate.
The run is handed over there and back, by the call that `edge-agent handover` makes. A pause is the time between the two
steps around it less that of a usual step. With K = 0 nothing is in flight then, so there is nothing to drain. The goal is
1.10 times the bytes over the rate that plain TCP carries, 4 round trips, and 0.2 s. While the new trainer is prepared, from
the call to the pause, steps are to keep 0.95 of their pace. The same is measured where nothing happens. Blocks sleep for as
long as they would compute, so that the processes, which share the cores of one machine, are as if each had its own.
"""

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import grpc
from rich.console import Console
from rich.table import Table

from benchmarks.net import Measure, Mesh, Namespace, meshed_namespaces
from benchmarks.support.arguments import benchmark_parser
from benchmarks.support.live import LiveRun, Moment
from benchmarks.support.machine import machine
from benchmarks.support.processes import trainer_process
from benchmarks.support.report import Spread, write_json
from edge_agent.experiment.workload import Workload
from isthmus import EdgeConfig
from shared.config import load_config
from shared.errors import IsthmusError
from shared.placement import AGENT
from shared.transport.rpc.contract import Stub
from shared.wire.isthmus.v1 import control_pb2 as pb

TRAINERS = ("here", "there")
ROUND_TRIP_SECONDS = 0.02
MEGABYTES = (32, 128)
"""Sizes of what the trainer has: weights, and as much of momentum."""
RATES = (1e8, 1e9)
BLOCKS = 4
"""Number of blocks at the trainer."""
FORWARD_SECONDS, BACKWARD_SECONDS = 0.006, 0.012
"""Times of a block."""
PROCESS_FLAGS = ("compute.threads=1", "compute.device=cpu")
WARM_STEPS = 40
"""Steps between two handovers: their pace is that of steps without any."""
CONTROL_STEPS = 15
"""Steps in which nothing happens, about as many as a preparation takes."""
ALLOWED_FACTOR, ALLOWED_SECONDS, ALLOWED_TRIPS = 1.10, 0.2, 4
KEPT_PACE = 0.95
TCP_SECONDS = 2.0


class _Between(NamedTuple):
    edge: Namespace
    cloud: Namespace


@dataclass(frozen=True)
class Row:
    """The handovers of one state over one link."""

    megabytes: float
    bits_per_second: float
    """Rate that plain TCP carries between the trainers."""
    goal_seconds: float
    pauses: Spread
    pace: Spread
    """Part of the pace that steps keep while the new trainer is prepared."""
    undisturbed: Spread
    """The same while nothing happens."""

    @property
    def is_kept(self) -> bool:
        """Tell whether the median of the pauses keeps to the goal."""
        return self.pauses.median <= self.goal_seconds


def model_flags(megabytes: int) -> list[str]:
    """A network of which all blocks but the first are at the trainer, with so many MB of weights and momentum."""
    amounts = [[FORWARD_SECONDS, BACKWARD_SECONDS]] * (1 + BLOCKS)
    sizes = [4096] + [round(megabytes * 1e6 / 2 / BLOCKS)] * BLOCKS
    return [
        'model.factory="benchmarks.networks:weighted_blocks"',
        f"model.kwargs={{amounts={amounts}, sizes={sizes}}}",
        'data.train={factory="benchmarks.networks:RandomImages", kwargs={samples=320000, size=1}}',
        'training.optimizer={name="sgd", learning_rate=0.01, momentum=0.9}',
        "training.epochs=1000000",
        "training.evaluate_every_epochs=0",
        "data.batch_size=8",
        "deployment.cut=1",
    ]


def moved_bytes(megabytes: int) -> int:
    """Count the bytes of what the trainer has: weights and momentum."""
    chain = Workload(load_config(EdgeConfig, None, model_flags(megabytes), environ={})).chain
    weights = (each for block in chain.blocks[1:] for each in block.module.parameters())
    return sum(2 * each.numel() * each.element_size() for each in weights)


class Handovers(NamedTuple):
    """The figures of some handovers, each in their order."""

    pauses: list[float]
    """Pauses in seconds."""
    paces: list[float]
    """Parts of the pace that steps kept before each, from the call on."""
    undisturbed: list[float]


def handovers(run: LiveRun, control: str, count: int) -> Handovers:
    """Hand over there and back."""
    found = Handovers([], [], [])
    with grpc.insecure_channel(control) as channel:
        service = Stub(pb.DESCRIPTOR.services_by_name["EdgeControlService"], channel)
        for number in range(count):
            run.steps(WARM_STEPS)
            asked = time.monotonic()
            service.Handover(pb.HandoverRequest(trainer=TRAINERS[(number + 1) % 2]), timeout=120.0)
            pause, pace = measured(run.steps(WARM_STEPS // 2), asked)
            begun = run.steps(WARM_STEPS)[-1].seconds
            undisturbed = kept_pace(run.steps(CONTROL_STEPS), begun, time.monotonic())
            for figures, figure in zip(found, (pause, pace, undisturbed), strict=True):
                figures.append(figure)
            told = f"pause {pause:.3f} s, pace before {pace:.2f}, of nothing {undisturbed:.2f}"
            print(f"handover {number + 1}: {told}", file=sys.stderr, flush=True)
    return found


def measured(moments: Sequence[Moment], asked: float) -> tuple[float, float]:
    """Return the pause in seconds, and the part of the pace that steps kept from the call to it."""
    usual, since = _steps_since(moments, asked)
    longest = max(range(len(since) - 1), key=lambda place: since[place + 1] - since[place])
    return since[longest + 1] - since[longest] - usual, _pace(usual, since[: longest + 1])


def kept_pace(moments: Sequence[Moment], begun: float, ended: float) -> float:
    """Return the part of the pace that steps kept from one time to another."""
    usual, since = _steps_since(moments, begun)
    return _pace(usual, [end for end in since if end <= ended])


def _steps_since(moments: Sequence[Moment], begun: float) -> tuple[float, list[float]]:
    """Return the seconds of a usual step before a time, and the ends of the last one before it and of all since."""
    ends = [moment.seconds for moment in moments]
    before = [end for end in ends if end <= begun][-WARM_STEPS // 2 :]
    usual = statistics.median(later - earlier for earlier, later in pairwise(before))
    return usual, [before[-1], *(end for end in ends if end > begun)]


def _pace(usual: float, ends: Sequence[float]) -> float:
    """Return the part of the pace of usual steps that those between these ends have."""
    return min(1.0, (len(ends) - 1) * usual / (ends[-1] - ends[0])) if len(ends) > 1 else 1.0


def measure(mesh: Mesh, plain: Measure, megabytes: int, repeats: int, rate: float) -> Row:
    """Measure one state over one link."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        mesh.shape(rate, TRAINERS)
        addresses = {
            name: stack.enter_context(
                trainer_process(
                    *PROCESS_FLAGS,
                    *("control.listen=none", "checkpoints.location=none", "server.accept_inputs=true"),
                    f'peers.allowed=["{mesh.machines[other].address}:*"]',
                    wrapper=mesh.machines[name].command([]),
                    listen=f"{mesh.machines[name].address}:0",
                )
            )
            for name, other in (TRAINERS, TRAINERS[::-1])
        }
        carried = plain.uplink(TCP_SECONDS)
        named = ", ".join(f'{{name="{name}", address="{address}"}}' for name, address in addresses.items())
        control = f"unix:{Path(folder, 'agent.sock')}"
        flags = [*PROCESS_FLAGS, *model_flags(megabytes), f"trainers=[{named}]", f"control.listen={control}"]
        permitted = f"privacy.inputs_to={json.dumps(TRAINERS)}"  # blocks that sleep hand on what they get
        run = LiveRun([*flags, permitted, "checkpoints.location=none"], mesh.machines[AGENT].command([]))
        try:
            found = handovers(run, control, repeats)
        finally:
            run.stop()
    size = moved_bytes(megabytes)
    goal = ALLOWED_FACTOR * 8 * size / carried + ALLOWED_TRIPS * ROUND_TRIP_SECONDS + ALLOWED_SECONDS
    return Row(size / 1e6, carried, goal, *map(Spread.of, found))


def table(rows: Sequence[Row]) -> Table:
    """The rows as a table for people."""
    drawn = Table("MB", "TCP, Mbit/s", "pause, s", "goal, s", "pause", "pace before", "pace", "of nothing")
    for row in rows:
        drawn.add_row(
            f"{row.megabytes:.0f}",
            f"{row.bits_per_second / 1e6:.0f}",
            row.pauses.show(1, 2),
            f"{row.goal_seconds:.2f}",
            "kept" if row.is_kept else "MISSED",
            row.pace.show(1, 2),
            "kept" if row.pace.median >= KEPT_PACE else "MISSED",
            row.undisturbed.show(1, 2),
        )
    return drawn


def main() -> None:
    """Measure every state over every link, print, and write the figures if asked to."""
    parser = benchmark_parser("move", __doc__)
    parser.add_argument("--repeats", type=int, default=6, help="handovers of each")
    arguments = parser.parse_args()
    rows = []
    delays = {(AGENT, name): ROUND_TRIP_SECONDS for name in TRAINERS}
    try:
        with meshed_namespaces("move", (AGENT, *TRAINERS), delays) as mesh:
            plain = Measure(_Between(*(mesh.machines[name] for name in TRAINERS)))
            for megabytes in MEGABYTES:
                for rate in RATES:
                    rows.append(measure(mesh, plain, megabytes, arguments.repeats, rate))
                    print(rows[-1], file=sys.stderr, flush=True)
    except IsthmusError as failure:
        sys.exit(str(failure))
    console = Console(width=180)
    console.print(f"{machine()}; median (quartiles) of {arguments.repeats}")
    console.print(table(rows))
    write_json(arguments.json, "move", rows=rows)


if __name__ == "__main__":
    main()
