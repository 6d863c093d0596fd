"""Speed of the uniform and the MBQ codecs, beside torch's own quantiser and a copy of the same memory.

    python -m benchmarks.codec [--repeats N] [--json PATH]

Everything is timed on the same ReLU-like features in the same run, in turns, so that what else the machine does falls on
all alike. Rates count the bytes of the float32 feature. "torch" is aminmax and quantize_per_tensor (per channel: amin,
amax and quantize_per_channel): it packs nothing, and its bytes would be one more copy (int_repr, given too). torch has
announced that these functions go; without them their rows and the ratios are left out. "both" is an MBQ codec's encoding and
decoding, one after the other: the goal is 1 GB/s on one thread.
"""

import json
import os
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from benchmarks.support.arguments import benchmark_parser
from shared.codec import Codec, codec_by_name

SHAPES = ((16, 64, 32, 32), (64, 64, 32, 32))
"""Batch, channels, height, width: 4 MiB and 16 MiB."""
THREADS = (1, 2)
FAMILIES = (
    ("uniform", "", "", (2, 4, 8)),
    ("uniform", "-channel", ", channel", (2, 4, 8)),
    ("mbq", "", ", MBQ", (2, 3, 4)),
)
"""Family, ending of the codec's name, ending of the row's name, and the widths."""


@dataclass(frozen=True)
class Rate:
    """The rate of one operation on one feature; in 10^9 bytes of float32 a second."""

    threads: int
    mebibytes: int
    operation: str
    median_gb_per_second: float
    lower_quartile_gb_per_second: float
    upper_quartile_gb_per_second: float
    times_torch: float | None
    """Median seconds over those of torch's way to do the same at 8 bits; None where torch has none."""


def torch_encode(feature: Tensor) -> Tensor:
    """torch's way, one range for the tensor."""
    low, high = (extreme.item() for extreme in torch.aminmax(feature))
    step = (high - low) / 255
    return torch.quantize_per_tensor(feature, step, round(-low / step), torch.quint8)


def torch_encode_channels(feature: Tensor) -> Tensor:
    """torch's way, one range for each channel."""
    low, high = feature.amin((0, 2, 3)), feature.amax((0, 2, 3))
    steps = (high - low).double() / 255
    return torch.quantize_per_channel(feature, steps, (-low / steps).round().long(), 1, torch.quint8)


def operations(feature: Tensor) -> dict[str, tuple[Callable[[], object], str]]:
    """Return the timed operations by name, each with the name of the operation that it is compared to."""
    other = torch.empty_like(feature)
    timed: dict[str, tuple[Callable[[], object], str]] = {"copy": (lambda: other.copy_(feature), "")}
    if hasattr(torch, "quantize_per_tensor"):
        quantized, by_channel = torch_encode(feature), torch_encode_channels(feature)
        timed["torch encode"] = (lambda: torch_encode(feature), "torch encode")
        timed["torch encode, bytes"] = (lambda: torch_encode(feature).int_repr(), "torch encode")
        timed["torch decode"] = (quantized.dequantize, "torch decode")
        timed["torch encode, channel"] = (lambda: torch_encode_channels(feature), "torch encode, channel")
        timed["torch decode, channel"] = (by_channel.dequantize, "torch decode, channel")
    for family, suffix, ending, widths in FAMILIES:
        for bits in widths:
            codec = codec_by_name(f"{family}{bits}{suffix}")
            encoded = codec.encode(feature)
            name, reference = f"{bits} bits{ending}", ending if family == "uniform" else ""
            timed[f"encode {name}"] = (partial(codec.encode, feature), f"torch encode{reference}")
            timed[f"decode {name}"] = (partial(codec.decode, encoded), f"torch decode{reference}")
            if family == "mbq":
                timed[f"both {name}"] = (partial(_there_and_back, codec, feature), "")
    return timed


def _there_and_back(codec: Codec, feature: Tensor) -> Tensor:
    return codec.decode(codec.encode(feature))


def measure(shape: tuple[int, ...], threads: int, repeats: int) -> list[Rate]:
    """Time every operation `repeats` times, in turns."""
    torch.set_num_threads(threads)
    feature = torch.randn(shape, generator=torch.Generator().manual_seed(0)).relu()
    timed = operations(feature)
    seconds: dict[str, list[float]] = {name: [] for name in timed}
    for _ in range(repeats):
        for name, (operation, _reference) in timed.items():
            operation()  # the turn before has filled the caches with something else
            start = time.perf_counter()
            operation()
            seconds[name].append(time.perf_counter() - start)
    rates = []
    for name, (_operation, reference) in timed.items():
        slow, middle, fast = (feature.nbytes / 1e9 / at for at in reversed(statistics.quantiles(seconds[name], n=4)))
        times_torch = (
            statistics.median(seconds[name]) / statistics.median(seconds[reference]) if reference in timed else None
        )
        rates.append(Rate(threads, feature.nbytes >> 20, name, middle, slow, fast, times_torch))
    return rates


def table(rates: list[Rate]) -> Table:
    """One size and one number of threads, for people."""
    drawn = Table(title=f"{rates[0].mebibytes} MiB of float32, threads: {rates[0].threads}", title_justify="left")
    drawn.add_column("operation")
    for heading in ("GB/s, median", "quartiles", "time / torch's"):
        drawn.add_column(heading, justify="right")
    for rate in rates:
        quartiles = f"{rate.lower_quartile_gb_per_second:.1f} to {rate.upper_quartile_gb_per_second:.1f}"
        ratio = "" if rate.times_torch is None else f"{rate.times_torch:.2f}"
        drawn.add_row(rate.operation, f"{rate.median_gb_per_second:.1f}", quartiles, ratio)
    return drawn


def settle_malloc() -> None:
    """Bring malloc to where the first steps of any training bring it: glibc keeps large pieces once one was given back.

    Before that, each result comes as fresh pages from the kernel, which costs more than what is timed here.
    """
    torch.empty(31 << 20, dtype=torch.uint8)


def main() -> None:
    """Parse, measure, print, and write the figures if asked to."""
    parser = benchmark_parser("codec", "Rates of the codecs that pack levels.")
    parser.add_argument("--repeats", type=int, default=51, help="timings of each operation (default: 51)")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore", message="torch.quantize_per_tensor")
    settle_malloc()
    console = Console()
    machine = {
        "torch": torch.__version__,
        "vector_instructions": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "load_before": os.getloadavg()[0],
    }
    console.print(", ".join(f"{name}: {value}" for name, value in machine.items()))
    results = []
    for threads in THREADS:
        for shape in SHAPES:
            rates = measure(shape, threads, arguments.repeats)
            console.print(table(rates))
            results.extend(rates)
    if arguments.json:
        arguments.json.write_text(
            json.dumps({"machine": machine, "rates": [asdict(rate) for rate in results]}, indent=1)
        )


if __name__ == "__main__":
    main()
