"""Gain of a chain over fewer devices, over an even split, and over PyTorch's own pipeline. Blocks compute.

MobileNetV2, features and gradients in float32, stashed weights, links that carry what they can. Every machine has a share of a
core. The ways of one comparison take turns, each a session of its own.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from rich.table import Table

from benchmarks.chain.machines import NAMES, Machines, machines
from benchmarks.chain.measured import (
    END_SECONDS,
    Model,
    chain_document,
    even_cuts,
    measured_model,
    parsed,
    placement_flags,
    planned,
)
from benchmarks.chain.options import Options, Result
from benchmarks.chain.pace import seconds_per_step
from benchmarks.support.peer_stage import BATCH, Pipeline, mobilenet_flags, pipeline_ends
from benchmarks.support.report import Spread
from edge_agent.planning import Profile, Rates, stacked
from edge_agent.planning.measurements import FLOAT32_BITS
from shared.placement import AGENT

STALENESS = 4
ALIKE, UNLIKE = (0.3, 0.3, 0.3), (0.9, 0.9, 0.1)
ONE_GOAL, TWO_GOAL, EVEN_GOAL, PEER_GOAL = 2.4, 1.3, 5.0, 1.0
LOOPBACK = Rates(5e9, 5e9, 0.0002)
WARM_UP_STEPS, SEGMENT_STEPS, SECONDS = 12, 5, 20.0
MICROBATCHES = (1, 2, 4, 8)
PEER_PORT = 29511
Measure = Callable[[], list[float]]
"""Seconds per step of some stretches, of one more run."""


@dataclass(frozen=True)
class Comparison:
    """One way beside the others."""

    shares: tuple[float, ...]
    ours: str
    other: str
    ours_seconds: Spread
    other_seconds: Spread
    goal: float

    @property
    def ratio(self) -> float:
        """Ratio by which it is faster than the other."""
        return self.other_seconds.median / self.ours_seconds.median


class Shares:
    """Ways to train on machines with shares of a core."""

    def __init__(self, running: Machines, model: Model, shares: Sequence[float], seconds: float) -> None:
        self._running, self._model, self._seconds = running, model, seconds
        self._paces = {name: 1.0 / share for name, share in zip(NAMES, shares, strict=True)}

    def chain(self, stages: int) -> Profile:
        """Return the profile of the first stages."""
        paces = dict(list(self._paces.items())[:stages])
        return parsed(chain_document(self._model, paces, LOOPBACK, end_seconds=END_SECONDS))

    def planned(self, stages: int) -> tuple[int, ...]:
        """The best cuts of the first stages."""
        return planned(self.chain(stages), (FLOAT32_BITS,), STALENESS).layout.cuts

    def ours(self, cuts: tuple[int, ...]) -> list[float]:
        """Train on one machine more than there are cuts."""
        names = NAMES[: len(cuts) + 1]
        layout = stacked(self.chain(len(names)), cuts, STALENESS, (FLOAT32_BITS,) * len(cuts))
        placed = placement_flags(self._running.folder, layout, STALENESS, "uniform8")
        run = self._running.train([*self._model.flags, *placed], names[1:])
        try:
            run.steps(WARM_UP_STEPS)
            run.watch(self._seconds)
            return seconds_per_step(run.steps(SEGMENT_STEPS)[WARM_UP_STEPS:], SEGMENT_STEPS)
        finally:
            run.stop()

    def peer(self, cuts: tuple[int, ...], microbatches: int, step_seconds: float) -> list[float]:
        """Train with PyTorch's pipeline. step_seconds: about what a step takes."""
        steps = WARM_UP_STEPS + SEGMENT_STEPS * max(2, round(self._seconds / step_seconds / SEGMENT_STEPS))
        names = NAMES[: len(cuts) + 1]
        master = f"{self._running.mesh.machines[AGENT].address}:{PEER_PORT}"
        pipeline = Pipeline(master, microbatches, steps, BATCH, "mobilenet", cuts)
        ends = pipeline_ends(pipeline, [self._running.wrappers[name] for name in names])
        steady = ends[WARM_UP_STEPS:]
        return [
            (steady[last] - steady[last - SEGMENT_STEPS]) / SEGMENT_STEPS
            for last in range(SEGMENT_STEPS, len(steady), SEGMENT_STEPS)
        ]


def in_turn(ways: Mapping[str, Measure], options: Options) -> dict[str, Spread]:
    """Every way, one after the other, again and again."""
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(options.repeats):
        for name, measure in ways.items():
            taken[name] += measure()
            options.tell(f"{name}: {Spread.of(taken[name]).show(1e3)} ms a step")
    return {name: Spread.of(seconds) for name, seconds in taken.items()}


def best_of(spreads: Mapping[str, Spread], begins: str) -> str:
    """The quickest way whose name begins so."""
    return min((name for name in spreads if name.startswith(begins)), key=lambda name: spreads[name].median)


def alike(way: Shares, options: Options) -> list[Comparison]:
    """Three devices of one kind beside one, beside two, and beside PyTorch's pipeline."""
    blocks = len(way.chain(1))
    three, (two,) = way.planned(3), way.planned(2)
    ways: dict[str, Measure] = {"one": partial(way.ours, ()), "three": partial(way.ours, three)}
    for cut in sorted({max(1, two - 1), two, min(blocks - 1, two + 1)}):
        ways[f"two, cut {cut}"] = partial(way.ours, (cut,))
    step_seconds = planned(way.chain(3), (FLOAT32_BITS,)).seconds_per_step
    for count in MICROBATCHES:
        ways[f"PyTorch, {count} microbatches"] = partial(way.peer, three, count, step_seconds)
    found = in_turn(ways, options)
    return [
        Comparison(ALIKE, f"three, cuts {three}", other, found["three"], found[other], goal)
        for other, goal in (
            ("one", ONE_GOAL),
            (best_of(found, "two"), TWO_GOAL),
            (best_of(found, "PyTorch"), PEER_GOAL),
        )
    ]


def unlike(way: Shares, options: Options) -> list[Comparison]:
    """Two quick devices and a slow one, beside an even split."""
    planned, even = way.planned(3), even_cuts(len(way.chain(1)), 3)
    found = in_turn({"planned": lambda: way.ours(planned), "even": lambda: way.ours(even)}, options)
    ours, other = f"planned, cuts {planned}", f"even, cuts {even}"
    return [Comparison(UNLIKE, ours, other, found["planned"], found["even"], EVEN_GOAL)]


def speed(options: Options) -> Result:
    """All comparisons."""
    model = measured_model(mobilenet_flags(BATCH))
    rows: list[Comparison] = []
    for number, (shares, compare) in enumerate(((ALIKE, alike), (UNLIKE, unlike))):
        folder = options.folder / str(number)
        folder.mkdir()
        with machines(folder, NAMES, dict(zip(NAMES, shares, strict=True))) as running:
            rows += compare(Shares(running, model, shares, options.seconds or SECONDS), options)
    title = f"blocks compute, MobileNetV2 of {model.seconds * 1e3:.0f} ms on a whole core; milliseconds a step"
    table = Table("shares of a core", "ours", "step", "other", "step", "times as fast", "goal", "", title=title)
    for row in rows:
        table.add_row(
            "/".join(f"{share:.0%}" for share in row.shares),
            row.ours,
            row.ours_seconds.show(1e3),
            row.other,
            row.other_seconds.show(1e3),
            f"{row.ratio:.2f}",
            f"{row.goal:g}",
            "" if row.ratio >= row.goal else "MISSED",
        )
    return Result([table], rows)
