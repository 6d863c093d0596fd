"""Cost of staleness in the edge's memory: `python -m benchmarks.memory [--repeats N] [--json PATH]`.

Real agent processes on a network whose edge block keeps large activations: K = 0, K = 5 with feature replay, K = 5 with
stashing. Replay should grow by K inputs and no activations; stashing by K times the activations and, for each version in
flight, the weights. What counts is what a process holds at most. What is resident at most is more, and differs by tens of
megabytes from run to run: the allocator keeps holes between tensors (docs/limits.md). Each is run several times; differences
are of medians.
"""

import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.networks import wide_edge
from benchmarks.support.arguments import benchmark_parser
from benchmarks.support.machine import machine
from benchmarks.support.processes import run_agent, trainer_process
from benchmarks.support.report import Spread, write_json

STALENESS = 5
BATCH, SIZE, CHANNELS = 32, 64, 16
INPUT_BYTES = BATCH * 3 * SIZE * SIZE * 4
STEPS = 24
REPEATS = 5
CASES = (("replay", 0), ("replay", STALENESS), ("stash", STALENESS))
MB = 1e6


@dataclass(frozen=True)
class Peak:
    """One way to train."""

    backward: str
    staleness: int
    held_bytes: Spread
    """Allocated and not freed, at most."""
    resident_bytes: Spread
    """At most."""
    expected_growth_bytes: int
    """Over K = 0."""


def kept_bytes() -> tuple[int, int]:
    """Return the bytes that autograd keeps of one forward of the edge block besides weights and inputs, and those of
    the weights."""
    block, inputs = wide_edge(CHANNELS)[0], torch.zeros(BATCH, 3, SIZE, SIZE)
    own = {inputs.data_ptr(), *(parameter.data_ptr() for parameter in block.parameters())}
    kept: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        block(inputs)
    activations = sum(size for address, size in kept.items() if address not in own)
    return activations, sum(parameter.nbytes for parameter in block.parameters())


def expected_growth(backward: str, staleness: int) -> int:
    """Bytes more than with K = 0, where the one graph in flight keeps one input and one set of activations."""
    activations, weights = kept_bytes()
    more = INPUT_BYTES if backward == "replay" else INPUT_BYTES + activations + weights
    return staleness * more


def flags(backward: str, staleness: int) -> list[str]:
    """The agent's settings. The dataset is small: it lies in memory too, and is the same for all."""
    return [
        'model.factory="benchmarks.networks:wide_edge"',
        f"model.kwargs={{channels={CHANNELS}}}",
        f'data.train={{factory="benchmarks.networks:RandomImages", kwargs={{size={SIZE}, samples={BATCH * STEPS}}}}}',
        f"data.batch_size={BATCH}",
        "training.epochs=1",
        f"deployment.backward={backward}",
        f"deployment.staleness={staleness}",
        "deployment.staleness_correction=none",
        "deployment.cut=1",
    ]


def held_and_resident(address: str, settings: Sequence[str]) -> tuple[int, int]:
    """The bytes that an agent holds at most, and those that are resident at most. It computes on one thread."""
    fixed = ["training.evaluate_every_epochs=0", "compute.threads=1", "compute.device=cpu", "control.listen=none"]
    with tempfile.TemporaryDirectory(prefix="isthmus-") as folder:
        held = Path(folder) / "held"
        watch = [sys.executable, "-m", "benchmarks.support.heap_watch", str(held)]
        resident = run_agent(address, [*settings, *fixed], watch).peak_resident_bytes
        return int(held.read_text()), resident


def main() -> None:
    """Measure every case and print the table."""
    parser = benchmark_parser("memory", __doc__)
    parser.add_argument("--repeats", type=int, default=REPEATS, help="processes of each kind (%(default)s)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    seen: dict[tuple[str, int], list[tuple[int, int]]] = {case: [] for case in CASES}
    with trainer_process("compute.threads=1", "compute.device=cpu") as address:
        for _ in range(arguments.repeats):
            for case in CASES:
                seen[case].append(held_and_resident(address, flags(*case)))
    peaks = []
    for case, sizes in seen.items():
        held, resident = map(Spread.of, zip(*sizes, strict=True))
        peaks.append(Peak(*case, held, resident, expected_growth(*case)))
    table = Table("backward", "K", "held", "growth", "growth expected", "resident", "its growth")
    for peak in peaks:
        growth = peak.held_bytes.median - peaks[0].held_bytes.median
        resident_growth = peak.resident_bytes.median - peaks[0].resident_bytes.median
        table.add_row(
            peak.backward,
            str(peak.staleness),
            peak.held_bytes.show(1 / MB),
            f"{growth / MB:.1f}",
            f"{peak.expected_growth_bytes / MB:.1f}",
            peak.resident_bytes.show(1 / MB),
            f"{resident_growth / MB:.1f}",
        )
    console = Console(width=150)
    activations, weights = kept_bytes()
    console.print(f"{machine()}; MB, median (quartiles) of {arguments.repeats} processes")
    console.print(
        f"an input has {INPUT_BYTES / MB:.1f} MB, the activations of a batch {activations / MB:.1f} MB, "
        f"the weights {weights / MB:.2f} MB"
    )
    console.print(table)
    write_json(arguments.json, "memory", input_bytes=INPUT_BYTES, activation_bytes=activations, peaks=peaks)


if __name__ == "__main__":
    main()
