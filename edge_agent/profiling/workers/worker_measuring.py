"""Measurements of blocks on several workers, and of the links between these.

What is done is kept, so that measurements that were interrupted go on where they were. Trainers compute on made-up features,
never on samples.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence

from edge_agent.experiment.experiment import Experiment
from edge_agent.profiling.block_costs import TriedBlock
from edge_agent.profiling.events import PieceMeasured
from edge_agent.profiling.rounds import ROUNDS, in_rounds, mean_step, steps_of_a_round
from edge_agent.profiling.timers import Timer, timer_at
from edge_agent.profiling.workers.measured_links import measured_link
from edge_agent.profiling.workers.measured_parts import MeasuredParts, ToMeasure
from edge_agent.sessions.joining import join
from edge_agent.sessions.open_session import OpenSession
from shared.client.link_measurement import MOST_BYTES
from shared.control.formatting import size
from shared.events import Emit

_SAVED_EVERY_SECONDS = 1.0
"""Maximum time of measurements that a profile that is killed has to repeat."""


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
        saved_seconds = time.monotonic()
        everything = [(name, piece) for name, pieces in self._pieces.items() for piece in pieces]
        for done, (number, (name, piece)) in enumerate(in_rounds(everything), start=1):
            rounds = self._parts.rounds(name, piece)
            if rounds is None or 0 < len(rounds) <= number:
                mean = await mean_step(timers[name], name, piece.run, self._steps, piece.samples)
                self._parts.add(name, piece, () if mean is None else (*(rounds or ()), mean))
            if time.monotonic() - saved_seconds >= _SAVED_EVERY_SECONDS:
                await asyncio.to_thread(self._parts.save)
                saved_seconds = time.monotonic()
            emit(PieceMeasured(done, self._total))

    async def _measure_links(self, session: OpenSession, emit: Emit) -> None:
        for done, (near, far) in enumerate(self._links, start=self._total - len(self._links) + 1):
            if self._parts.link(near, far) is None:
                self._parts.add_link(near, far, await measured_link(session, near, far))
                await asyncio.to_thread(self._parts.save)
            emit(PieceMeasured(done, self._total))
