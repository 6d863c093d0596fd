"""Rounds of measurements: each times every run of blocks once, in an order of its own.

So what disturbs the machine for a while disturbs few rounds of many runs, not all of one.
"""

import math
import random
import statistics
from collections.abc import Iterator, Sequence
from typing import TypeVar

import structlog

from edge_agent.profiling.memory import available_bytes, needed_bytes
from edge_agent.profiling.timers import Timer, is_of_the_blocks
from shared.errors import RefusedError
from shared.model.chain import Chain
from shared.training.step_seconds import StepSeconds

_log = structlog.get_logger(__name__)
ROUNDS = 3
Run = tuple[int, int]
"""The blocks [first, stop)."""
Piece = TypeVar("Piece")


def steps_of_a_round(repeats: int) -> int:
    """Return the steps of one measurement, so that all rounds have `repeats` at least."""
    return math.ceil(repeats / ROUNDS)


def runs_with_room(chain: Chain, runs: Sequence[Run]) -> list[Run]:
    """Return the runs of blocks that fit in the memory of this device."""
    free = available_bytes()
    fit = [run for run in runs if needed_bytes(chain, *run) <= free]
    if len(fit) < len(runs):
        _log.warning("some runs of blocks do not fit in memory; they are left out", fit=len(fit), free_bytes=free)
    return fit


def in_rounds(pieces: Sequence[Piece]) -> Iterator[tuple[int, Piece]]:
    """Yield every piece once a round, each with the number of the round."""
    order = random.Random(0)
    for number in range(ROUNDS):
        for piece in order.sample(pieces, len(pieces)):
            yield number, piece


async def mean_step(
    timer: Timer, worker: str, run: Run, steps: int, samples: int | None = None, *, leave_out: bool = True
) -> StepSeconds | None:
    """Return the mean seconds of so many steps; None where the worker has no room for the run. Raises IsthmusError.

    samples: see `Timer`. leave_out: False to raise the worker's refusal then.
    """
    try:
        measured = await timer(*run, steps, samples)
    except RefusedError as refused:
        if not (leave_out and is_of_the_blocks(refused, run)):
            raise
        _log.warning("a run of blocks is left out", worker=worker, blocks=run, reason=str(refused))
        return None
    return StepSeconds(*map(statistics.fmean, zip(*measured, strict=True)))
