"""Measurements of blocks on several workers, and of the links between these.

Every round times each piece once, in an order of its own; see `latency_table`. What is done is kept, so that measurements that
were interrupted go on where they were. Trainers compute on made-up features, never on samples.
"""

import asyncio
import math
import random
import statistics
import time
from collections.abc import Mapping, Sequence

import structlog

from edge_agent.experiment.building import Experiment
from edge_agent.profiling.block_costs import TriedBlock
from edge_agent.profiling.events import PieceMeasured
from edge_agent.profiling.memory import available_bytes, needed_bytes
from edge_agent.profiling.timers import Timer, is_of_the_blocks, timer_at
from edge_agent.profiling.workers.measured_links import measured_link
from edge_agent.profiling.workers.measured_parts import MeasuredParts, Run, ToMeasure
from edge_agent.sessions.joining import join
from edge_agent.sessions.open_session import OpenSession
from shared.client.link_measurement import MOST_BYTES
from shared.control.formatting import size
from shared.errors import RefusedError
from shared.events import Emit
from shared.model.chain import Chain
from shared.training.step_seconds import StepSeconds

_log = structlog.get_logger(__name__)
ROUNDS = 3
_SAVED_EVERY_SECONDS = 1.0
"""Maximum time of measurements that a profile that is killed has to repeat."""


def steps_of_a_round(repeats: int) -> int:
    """Return the steps of one measurement, so that all rounds have `repeats` at least."""
    return math.ceil(repeats / ROUNDS)


def settings_of(experiment: Experiment, kind: str, names: Sequence[str], repeats: int) -> dict[str, str]:
    """Return the settings that decide the figures of any profile, by the name of each in a sentence."""
    config = experiment.config
    return {
        "kind": kind,
        "model": config.model.factory,
        "arguments": config.model.model_dump_json(exclude={"factory"}),
        "batch size": str(experiment.batch_size),
        "workers": ", ".join(names),
        "steps": str(steps_of_a_round(repeats)),
        "device": config.compute.model_dump_json(),
    }


def runs_with_room(chain: Chain, runs: Sequence[Run]) -> list[Run]:
    """Return the runs of blocks that fit in the memory of this device, and part no blocks that use a weight together."""
    free = available_bytes()
    wanted = [run for run in runs if not chain.parts_tied(*run)]
    fit = [run for run in wanted if needed_bytes(chain, *run) <= free]
    if len(fit) < len(wanted):
        _log.warning("some runs of blocks do not fit in memory; they are left out", fit=len(fit), free_bytes=free)
    return fit


class WorkerMeasuring:
    """The measurements of some workers, as far as they are not done."""

    def __init__(
        self,
        experiment: Experiment,
        pieces: Mapping[str, Sequence[ToMeasure]],
        links: Sequence[tuple[str, str]],
        steps: int,
        parts: MeasuredParts,
    ) -> None:
        """pieces: by worker. links: each with the worker first that dials. steps: of one measurement."""
        self._experiment = experiment
        self._pieces, self._links = pieces, links
        self._steps, self._parts = steps, parts
        self._total = ROUNDS * sum(map(len, pieces.values())) + len(links)

    def costs(self, tried: Sequence[TriedBlock], of_tables: Mapping[str, int] | None = None) -> list[str]:
        """List in words the measurements that are still to be made. of_tables: runs that no measurement is for, by worker."""
        lines, seconds = [], 0.0
        for name, pieces in self._pieces.items():
            left = [piece for piece in pieces for _ in range(self._rounds_left(name, piece))]
            for piece in left:
                part = piece.samples / self._experiment.batch_size
                seconds += (self._steps + 1) * part * sum(block.seconds for block in tried[slice(*piece.run)])
            known = (of_tables or {}).get(name, 0)
            runs = len({piece.run for piece in pieces})
            lines.append(
                f"{name}: {len(left)} measurements of {runs} runs of blocks, {self._steps} steps each"
                + (f"; {known} runs from its table" if known else "")
            )
        links = [link for link in self._links if self._parts.link(*link) is None]
        if self._links:
            named = ", ".join(f"{near}-{far}" for near, far in links) or "none"
            lines.append(f"links: {named}; at most {size(MOST_BYTES)} each way on each of them")
        lines.append(f"about {seconds + len(links):.0f} s, if every worker is as quick as this device")
        return lines

    def _rounds_left(self, name: str, piece: ToMeasure) -> int:
        rounds = self._parts.rounds(name, piece)
        return ROUNDS if rounds is None else ROUNDS - len(rounds) if rounds else 0

    async def measure(self, session: OpenSession, here: Mapping[str, Timer], emit: Emit) -> None:
        """Measure all that is not known yet, and keep it, whatever ends it. Where links are measured, the session is joined.

        here: the timers of this device, by the names that it has among the workers. Raises IsthmusError.
        """
        try:
            await self._measure_workers(session, here, emit)
            if self._links:
                session.members.need(session.members)
                await join(session)  # trainers measure links for an agent alone that has the session
                await self._measure_links(session, emit)
        finally:
            await asyncio.to_thread(self._parts.save)

    async def _measure_workers(self, session: OpenSession, here: Mapping[str, Timer], emit: Emit) -> None:
        timers = {name: timer_at(trainer) for name, trainer in session.members.items()} | dict(here)
        order, saved_seconds = random.Random(0), time.monotonic()
        everything = [(name, piece) for name, pieces in self._pieces.items() for piece in pieces]
        done = 0
        for number in range(ROUNDS):
            for name, piece in order.sample(everything, len(everything)):
                rounds = self._parts.rounds(name, piece)
                if rounds is None or 0 < len(rounds) <= number:
                    try:
                        steps = await timers[name](*piece.run, self._steps, piece.samples)
                        rounds = (*(rounds or ()), _mean(steps))
                    except RefusedError as refused:
                        if not is_of_the_blocks(refused, piece.run):
                            raise
                        _log.warning("a run of blocks is left out", worker=name, blocks=piece.run, reason=str(refused))
                        rounds = ()
                    self._parts.add(name, piece, rounds)
                if time.monotonic() - saved_seconds >= _SAVED_EVERY_SECONDS:
                    await asyncio.to_thread(self._parts.save)
                    saved_seconds = time.monotonic()
                done += 1
                emit(PieceMeasured(done, self._total))

    async def _measure_links(self, session: OpenSession, emit: Emit) -> None:
        for done, (near, far) in enumerate(self._links, start=self._total - len(self._links) + 1):
            if self._parts.link(near, far) is None:
                self._parts.add_link(near, far, await measured_link(session, near, far))
                await asyncio.to_thread(self._parts.save)
            emit(PieceMeasured(done, self._total))


def _mean(steps: Sequence[StepSeconds]) -> StepSeconds:
    return StepSeconds(*map(statistics.fmean, zip(*steps, strict=True)))
