"""The claim of paper 001 (Table 5): few bits and the planner's partition beside FTPipeHD's, over slow links. Blocks compute.

MobileNetV2, stashed weights, K = N - 1. FTPipeHD: float32 both ways, at the cuts of its own recursion, which knows each device
by one ratio. Ours: MBQ of 2 to 4 bits up, or float32, as the planner chooses for each link, and error gradients of 8 bits.
"""

from dataclasses import dataclass
from functools import partial

import torch
from rich.table import Table

from benchmarks.chain.machines import NAMES, Machines, machines
from benchmarks.chain.measured import (
    END_SECONDS,
    Model,
    chain_document,
    measured_model,
    parsed,
    placement_flags,
    planned,
    planned_as_ftpipehd,
)
from benchmarks.chain.options import Options, Result
from benchmarks.chain.pace import seconds_per_step
from benchmarks.support.peer_stage import BATCH, mobilenet_flags
from benchmarks.support.report import Spread
from edge_agent.planning import Layout, Profile, Rates
from shared.codec import codec_by_name
from shared.registry import codec_bits
from shared.training.measure import timed

STALENESS = len(NAMES) - 1
MBIT = (0.25, 0.5, 1.0, 2.0, 4.0)
GOALS = {(0.40, 0.20, 0.20): (3.02, 2.47, 2.05, 1.46, 1.21), (0.45, 0.15, 0.15): (2.37, 1.93, 1.48, 1.33, 1.13)}
"""By shares of a core, for each rate: FTPipeHD's time over ours, in the paper."""
OUR_BITS, OUR_GRADIENTS, FEATURE_FAMILY = (2, 3, 4, 32), "uniform8-stochastic", "mbq2"
ENCODE_REPEATS = 50
PAYLOAD = 0.956
"""Share of a rate that TCP's headers leave."""
WARM_UP_STEPS, SEGMENT_STEPS, SECONDS = 6, 3, 30.0


@dataclass(frozen=True)
class Cell:
    """Both, at one rate on devices of some shares."""

    shares: tuple[float, ...]
    mbit: float
    ours: str
    ftpipehd: str
    ours_seconds: Spread
    ftpipehd_seconds: Spread
    goal: float

    @property
    def ratio(self) -> float:
        """FTPipeHD's time over ours."""
        return self.ftpipehd_seconds.median / self.ours_seconds.median


def measured_encode() -> dict[str, float]:
    """Seconds of encoding, and per byte of float32, on a whole core: the line through the least times of two sizes."""
    codec = codec_by_name("mbq4")
    sizes = [BATCH * 4 * floats for floats in (320, 4096)]
    least = [min(timed(partial(codec.encode, torch.randn(size // 4)), ENCODE_REPEATS)) for size in sizes]
    slope = max(0.0, (least[1] - least[0]) / (sizes[1] - sizes[0]))
    return {"seconds": max(0.0, least[0] - slope * sizes[0]), "seconds_per_byte": slope}


def measured_chain(
    model: Model, shares: tuple[float, ...], mbit: float, encode: dict[str, float], end_seconds: float
) -> Profile:
    """Make the profile to plan with. end_seconds: see `chain_document`."""
    paces = {name: 1.0 / share for name, share in zip(NAMES, shares, strict=True)}
    link = Rates(PAYLOAD * mbit * 1e6, PAYLOAD * mbit * 1e6, 0.001)
    slowest = {key: value / min(shares) for key, value in encode.items()}
    return parsed(chain_document(model, paces, link, slowest, end_seconds))


def measure(running: Machines, model: Model, layout: Layout, gradients: str, seconds: float) -> list[float]:
    """Seconds per step of some stretches of a run."""
    placed = placement_flags(running.folder, layout, STALENESS, FEATURE_FAMILY, gradients)
    run = running.train([*model.flags, *placed])
    try:
        run.steps(WARM_UP_STEPS)
        run.watch(seconds)
        return seconds_per_step(run.steps(SEGMENT_STEPS)[WARM_UP_STEPS:], SEGMENT_STEPS)
    finally:
        run.stop()


def paper(options: Options) -> Result:
    """Every cell of the table; ours and FTPipeHD's take turns."""
    model, encode = measured_model(mobilenet_flags(BATCH)), measured_encode()
    rows = []
    for shares, goals in GOALS.items():
        folder = options.folder / "-".join(map(str, shares))
        folder.mkdir()
        with machines(folder, NAMES, dict(zip(NAMES, shares, strict=True))) as running:
            for mbit, goal in zip(MBIT, goals, strict=True):
                running.mesh.unshape()
                running.mesh.shape(mbit * 1e6)
                chain = measured_chain(model, shares, mbit, encode, END_SECONDS)
                ours = planned(chain.with_gradient_bits(codec_bits(OUR_GRADIENTS)), OUR_BITS, STALENESS).layout
                theirs = planned_as_ftpipehd(measured_chain(model, shares, mbit, encode, 0.0))
                taken: tuple[list[float], list[float]] = [], []
                for _ in range(options.repeats):
                    for layout, gradients, seconds in (
                        (ours, OUR_GRADIENTS, taken[0]),
                        (theirs, "fp32", taken[1]),
                    ):
                        seconds += measure(running, model, layout, gradients, options.seconds or SECONDS)
                spreads = [Spread.of(seconds) for seconds in taken]
                rows.append(Cell(shares, mbit, str(ours), str(theirs), spreads[0], spreads[1], goal))
                options.tell(rows[-1])
    table = Table(
        *("shares of a core", "Mbit/s", "ours", "step, ms", "FTPipeHD", "step, ms", "its / ours", "paper", ""),
        title=f"blocks compute, MobileNetV2, batches of {BATCH}, K = {STALENESS}",
    )
    for row in rows:
        table.add_row(
            "/".join(f"{share:.0%}" for share in row.shares),
            f"{row.mbit:g}",
            row.ours,
            row.ours_seconds.show(1e3, 0),
            row.ftpipehd,
            row.ftpipehd_seconds.show(1e3, 0),
            f"{row.ratio:.2f}",
            f"{row.goal:g}",
            "" if row.ratio >= row.goal else "MISSED",
        )
    return Result([table], rows)
