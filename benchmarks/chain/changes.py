"""Changes to a chain while it trains: the time until its engine has made the best of one, and whether it leaves well
alone."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from benchmarks.chain.machines import NAMES, machines
from benchmarks.chain.options import Options, Result
from benchmarks.chain.pace import layouts, seconds_to_reach, steps_per_second
from benchmarks.chain.sleeping import SleepingChain
from benchmarks.support.live import Moment

GOAL, GOAL_SECONDS = 0.9, 60.0
WARM_UP_STEPS = 40
SETTLE_SECONDS = 20.0
"""Time of even running before any change: the engine has made up its mind by then."""
WINDOW_SECONDS = 10.0
"""Over which a speed is measured."""
CHANGES: dict[str, Callable[[SleepingChain], None]] = {
    "the device takes twice as long": lambda chain: chain.slow_down(NAMES[0], 2.0),
    "the middle takes twice as long": lambda chain: chain.slow_down(NAMES[1], 2.0),
    "the last takes twice as long": lambda chain: chain.slow_down(NAMES[2], 2.0),
    "the first link carries a tenth": lambda chain: chain.narrow(0.1),
}


@dataclass(frozen=True)
class Change:
    """The outcome of a change in a run with an engine, beside a run that kept the best layout for the changed chain."""

    what: str
    before_speed: float
    """Steps a second, of the engine's run before the change."""
    kept_speed: float
    engine_speed: float
    """Once the goal's time was over."""
    reached_seconds: float | None
    """After the change, to the first window at 90 % of `kept_speed`; None for never."""
    moves: int
    """Changes of the layout after the change."""


@contextmanager
def sleeping_chain(folder: Path) -> Iterator[SleepingChain]:
    """The machines, and the chain on them."""
    with machines(folder, NAMES) as running:
        yield SleepingChain(running, folder)


def measure_change(chain: SleepingChain, what: str, seconds: float) -> Change:
    """A run with an engine to which it happens, and one that keeps the best. seconds: of the end, where speeds are measured."""
    chain.restore()
    run = chain.adapt()
    try:
        run.steps(WARM_UP_STEPS)
        changed = run.watch(SETTLE_SECONDS)[-1].seconds
        CHANGES[what](chain)
        moments = run.watch(GOAL_SECONDS + seconds)
    finally:
        run.stop()
    run = chain.keep()
    try:
        run.steps(WARM_UP_STEPS)
        kept = run.watch(seconds)
    finally:
        run.stop()
    kept_speed = speed_of_last(kept, seconds)
    return Change(
        what,
        steps_per_second(moments, changed - WINDOW_SECONDS, changed),
        kept_speed,
        speed_of_last(moments, seconds),
        seconds_to_reach(moments, changed, GOAL * kept_speed, WINDOW_SECONDS),
        sum(since > changed for since, _ in layouts(moments)[1:]),
    )


def speed_of_last(moments: list[Moment], seconds: float) -> float:
    """Steps a second of the last so many seconds."""
    end = moments[-1].seconds
    return steps_per_second(moments, end - seconds, end)


def changes(options: Options) -> Result:
    """Every change, `options.repeats` times."""
    rows = []
    with sleeping_chain(options.folder) as chain:
        for _ in range(options.repeats):
            for what in CHANGES:
                rows.append(measure_change(chain, what, options.seconds or 20.0))
                options.tell(rows[-1])
    table = Table(
        "what happens",
        "before, steps/s",
        "engine, steps/s",
        "best kept, steps/s",
        "engine / best",
        "90 % of it after, s",
        "moves",
        "",
        title=f"blocks sleep; goal: {GOAL:.0%} of the best layout that was kept, within {GOAL_SECONDS:g} s",
    )
    for row in rows:
        ratio = row.engine_speed / row.kept_speed
        reached = "never" if row.reached_seconds is None else f"{row.reached_seconds:.1f}"
        is_kept = row.reached_seconds is not None and row.reached_seconds <= GOAL_SECONDS and ratio >= GOAL
        table.add_row(
            row.what,
            *(f"{speed:.2f}" for speed in (row.before_speed, row.engine_speed, row.kept_speed, ratio)),
            reached,
            str(row.moves),
            "" if is_kept else "MISSED",
        )
    return Result([table], rows)


def quiet(options: Options) -> Result:
    """Nothing happens: the engine should change nothing."""
    seconds = options.seconds or 60.0
    moved = []
    with sleeping_chain(options.folder) as chain:
        for _ in range(options.repeats):
            run = chain.adapt()
            try:
                run.steps(1)
                moved.append(len(layouts(run.watch(seconds))) - 1)
            finally:
                run.stop()
            options.tell(moved[-1])
    table = Table("quiet minutes", "moves", "", title="blocks sleep; goal: no change")
    for count in moved:
        table.add_row(f"{seconds / 60:g}", str(count), "MISSED" if count else "")
    return Result([table], moved)
