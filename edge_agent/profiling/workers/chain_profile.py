"""The profile of a chain of workers: what runs of blocks take on each of them, and what the links between them carry.

A time is the median over the rounds of `worker_measuring`. What a latency table of a worker has, measured or predicted, is
taken from there.
"""

import asyncio
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np

from edge_agent.config import EdgeConfig
from edge_agent.experiment.experiment import Experiment
from edge_agent.placement_config import PlacementSection
from edge_agent.planning import MeasuredLink, Profile, WorkerProfile, no_times
from edge_agent.planning.measurements import Linear
from edge_agent.planning.prediction import LatencyTable
from edge_agent.profiling.block_costs import TriedBlock, crossing_bytes, profiled_blocks, times_in_table, try_blocks
from edge_agent.profiling.codec_times import codec_fits, narrow_codec
from edge_agent.profiling.events import Estimated
from edge_agent.profiling.rounds import Run, runs_with_room, steps_of_a_round
from edge_agent.profiling.timers import Timer, measured_experiment, measuring_session, timer_here
from edge_agent.profiling.workers.measured_parts import MeasuredParts, ToMeasure
from edge_agent.profiling.workers.worker_measuring import WorkerMeasuring, settings_of
from edge_agent.sessions.open_session import OpenSession
from shared.errors import ConfigError, PlanError
from shared.events import Emit, ignore
from shared.placement import AGENT, Tile, chain_workers
from shared.registry import codec_spec
from shared.training.step_seconds import totals


async def profile_chain(
    config: EdgeConfig,
    out: Path,
    repeats: int,
    emit: Emit = ignore,
    *,
    any_order: bool = False,
    tables: Mapping[str, LatencyTable] | None = None,
    dry_run: bool = False,
) -> Profile | None:
    """Measure the chain of a configuration, and write it to `out`.

    repeats: steps that each run of blocks is timed for, at least; they are spread over the rounds. any_order: has trainers
    measured wherever they may stand. tables: of workers whose times are known, by name. dry_run: ends before it begins, with
    the estimate that it emits, and returns None. Raises IsthmusError: ConfigError for a placement that is no chain, PlanError
    for a file of another chain.
    """
    async with measured_experiment(config, chain_experiment) as (experiment, threads):
        names = chain_workers(experiment.placement)
        if names is None or len(names) < 2:
            raise ConfigError(
                "the placement is not of workers that each run the next blocks, so it has no chain that could be measured"
            )
        parts = await asyncio.to_thread(MeasuredParts, out, _identity(experiment, names, repeats, any_order))
        measuring = ChainMeasuring(experiment, names, repeats, parts, any_order, tables or {})
        tried = await threads.compute.run(try_blocks, experiment)
        for line in measuring.costs(tried):
            emit(Estimated(line))
        if dry_run:
            return None
        async with measuring_session(experiment, threads) as session:
            await measuring.measure(session, {AGENT: timer_here(experiment, threads)}, emit)
        encode, _ = await threads.codec.run(codec_fits, narrow_codec(experiment.config), repeats, experiment.config)
        chain = measuring.chain(tried, Linear(encode["seconds"], encode["seconds_per_byte"]))
        await asyncio.to_thread(parts.finish, chain)
        return chain


class ChainMeasuring:
    """The measurements of one chain, as far as they are not done."""

    def __init__(
        self,
        experiment: Experiment,
        names: Sequence[str],
        repeats: int,
        parts: MeasuredParts,
        any_order: bool,
        tables: Mapping[str, LatencyTable],
    ) -> None:
        """names: of the workers, in the order of the chain."""
        self._experiment = experiment
        self._names, self._any_order, self._parts = tuple(names), any_order, parts
        self._runs = {name: self._runs_of(place) for place, name in enumerate(names)}
        if strangers := tables.keys() - set(names):
            raise ConfigError(f"--table names {min(strangers)!r}; the workers of this chain are {', '.join(names)}")
        self._known = {
            name: times_in_table(name, tables[name], runs, experiment) if name in tables else {}
            for name, runs in self._runs.items()
        }
        """Seconds of the runs that are not measured, by worker."""
        self._links = list(combinations(names, 2) if any_order else pairwise(names))
        pieces = {
            name: [self._piece(run) for run in runs if run not in self._known[name]]
            for name, runs in self._runs.items()
        }
        self._measuring = WorkerMeasuring(experiment, pieces, self._links, steps_of_a_round(repeats), parts)

    def _piece(self, run: Run) -> ToMeasure:
        return ToMeasure(*run, self._experiment.batch_size)

    def _runs_of(self, place: int) -> list[Run]:
        """The runs of blocks that a worker may have."""
        places = [place] if place == 0 or not self._any_order else range(1, len(self._names))
        wanted = list(dict.fromkeys(run for one in places for run in self._runs_at(one)))
        chain = self._experiment.chain
        whole = [run for run in wanted if not chain.parts_tied(*run)]
        return whole if place else runs_with_room(chain, whole)

    def _runs_at(self, place: int) -> list[Run]:
        """The runs at a place of the chain: each worker before and behind it has a block at least."""
        chain, behind = self._experiment.chain, len(self._names) - 1 - place
        blocks = len(chain.blocks)
        firsts = range(chain.first_boundary + place - 1, blocks) if place else [0]
        stops = range(chain.first_boundary + place, blocks - behind + 1) if behind else [blocks]
        return [(first, stop) for first in firsts for stop in stops if first < stop]

    def costs(self, tried: Sequence[TriedBlock]) -> list[str]:
        """List in words the measurements that are still to be made."""
        return self._measuring.costs(tried, {name: len(known) for name, known in self._known.items()})

    async def measure(self, session: OpenSession, here: Mapping[str, Timer], emit: Emit) -> None:
        """Measure all that is not known yet, and keep it. here: as in `WorkerMeasuring.measure`."""
        await self._measuring.measure(session, here, emit)

    def chain(self, tried: Sequence[TriedBlock], encode: Linear) -> Profile:
        """All that was measured. Raises PlanError where a worker has room for no run of blocks."""
        experiment = self._experiment
        feature_bytes, gradient_bytes = crossing_bytes(experiment.chain)
        links = {}
        for near, far in self._links:
            link = self._parts.link(near, far)
            assert link is not None, "all links are measured"
            links[near, far] = MeasuredLink(link.uplink, link.downlink, link.round_trip_seconds)
        return Profile(
            model=experiment.config.model.factory,
            batch_size=experiment.config.data.batch_size,
            blocks=profiled_blocks(experiment.chain, tried),
            feature_bytes=tuple(feature_bytes),
            gradient_bytes=tuple(gradient_bytes),
            encode=encode,
            codec_family=codec_spec(narrow_codec(experiment.config)).family,
            workers=tuple(self._worker(name) for name in self._names),
            links=links,
        )

    def _worker(self, name: str) -> WorkerProfile:
        blocks = len(self._experiment.chain.blocks)
        seconds = no_times(blocks)
        for run in self._runs[name]:
            if run in self._known[name]:
                seconds[run] = self._known[name][run]
            elif rounds := self._parts.rounds(name, self._piece(run)):
                seconds[run] = statistics.median(totals(rounds))
        if np.isnan(seconds).all():
            raise PlanError(f"worker {name!r} has no room for any run of blocks that it could have in this chain")
        return WorkerProfile(name, seconds, no_times(blocks))


def chain_experiment(config: EdgeConfig) -> Experiment:
    """Build the experiment of a configuration, with a chain of all its trainers where it names no placement. Raises
    IsthmusError."""
    if config.placement.given:
        return Experiment(config)
    if config.deployment.cut is not None:
        raise ConfigError(
            f"deployment.cut is {config.deployment.cut}, which is the cut of two workers, and trainers names several; leave it "
            "out"
        )
    alone = PlacementSection.model_validate({AGENT: ["0:"]})
    experiment = Experiment(config.model_copy(update={"placement": alone}))
    chain, names = experiment.chain, (AGENT, *(trainer.name for trainer in config.all_trainers))
    blocks, before = len(chain.blocks), chain.first_boundary
    if blocks < before + len(names) - 1:
        raise PlanError(
            f"there are {len(names)} workers and {blocks} blocks, and each worker must have a block at least, this device "
            f"{before}; leave trainers out"
        )
    runs = pairwise((0, *range(before, before + len(names) - 1), blocks))
    whole = experiment.placement.tiles[0].rows
    tiles = tuple(Tile(name, *run, whole) for name, run in zip(names, runs, strict=True))
    experiment.begin_at(experiment.completed(replace(experiment.placement, workers=names, tiles=tiles)))
    return experiment


def _identity(experiment: Experiment, names: Sequence[str], repeats: int, any_order: bool) -> dict[str, str]:
    return settings_of(experiment, "chain", names, repeats) | {
        "staleness": f"{experiment.placement.staleness} ({experiment.config.deployment.backward})",
        "order": "any" if any_order else "given",
    }
