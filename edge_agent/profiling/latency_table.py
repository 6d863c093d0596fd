"""Latency tables: sub-models [i, j) of a configuration's model, timed on this device or on one of its trainers.

Every round times each sub-model once, in an order of its own, and a time is the median over the rounds. So what disturbs the
machine for a while disturbs few rounds of many sub-models, not all of one.
"""

import asyncio
import random
import statistics
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext

import structlog

from edge_agent.config import EdgeConfig
from edge_agent.experiment.agent_threads import AgentThreads
from edge_agent.experiment.building import Experiment
from edge_agent.placement_config import PlacementSection
from edge_agent.planning.prediction import (
    REFERENCES,
    KnownDevices,
    LatencyTable,
    Layers,
    Sample,
    complete,
    contiguous,
    reference_of,
    representatives,
    vector,
)
from edge_agent.profiling.events import PieceMeasured
from edge_agent.profiling.memory import available_bytes, needed_bytes
from edge_agent.profiling.timers import (
    Timer,
    is_of_the_blocks,
    measured_experiment,
    measuring_session,
    timer_at,
    timer_here,
)
from edge_agent.profiling.workers.worker_measuring import ROUNDS, steps_of_a_round
from shared.client.config import TrainerAddressConfig
from shared.errors import ConfigError, PlanError, RefusedError
from shared.events import Emit, ignore
from shared.placement import AGENT
from shared.training.step_seconds import totals

_log = structlog.get_logger(__name__)


async def measure_table(
    config: EdgeConfig,
    worker: str = AGENT,
    repeats: int = 10,
    known: KnownDevices | None = None,
    emit: Emit = ignore,
    *,
    device: str | None = None,
) -> LatencyTable:
    """Measure the table of one worker.

    repeats: steps that each sub-model is timed for, at least; they are spread over the rounds. known: devices by which all
    sub-models are predicted once the ten that tell most are measured; without them all are measured. device: its name in the
    table; the worker's where it is left out. Raises IsthmusError; ConfigError for a worker that is not configured, PlanError
    for a model with too few blocks, or another than the known devices'.
    """
    target = None if worker == AGENT else _trainer(config, worker)
    trainers = () if target is None else (target,)
    config = config.model_copy(
        update={
            "trainer": TrainerAddressConfig(),
            "trainers": trainers,
            "placement": PlacementSection(),
            "deployment": config.deployment.model_copy(update={"cut": None, "staleness": 0}),  # without a replay
        }
    )
    async with measured_experiment(config) as (experiment, threads):
        flops = await asyncio.to_thread(experiment.block_operations)
        layers = len(experiment.chain.blocks)
        if known is not None:
            known.check("this configuration", config.model.factory, experiment.batch_size, layers)
        runs = contiguous(layers) if target is not None else _runs_with_room(experiment)
        reference = _reference(runs, flops, known)
        if known is not None:
            runs = [runs[index] for index in reference]
        timing = (
            nullcontext(timer_here(experiment, threads))
            if target is None
            else _timed_at(target.name, experiment, threads)
        )
        async with timing as timer:
            seconds = await _rounds(timer, runs, steps_of_a_round(repeats), emit, leave_out=known is None)
    runs = list(seconds)
    table = LatencyTable(
        model=config.model.factory,
        batch_size=experiment.batch_size,
        device=device or worker,
        layers=layers,
        reference=tuple(_reference(runs, flops, None) if known is None else range(len(runs))),
        samples=tuple(Sample(layers=vector(first, stop, layers), seconds=seconds[first, stop]) for first, stop in runs),
        flops=tuple(flops),
    )
    return table if known is None else await asyncio.to_thread(complete, known, table)


def _trainer(config: EdgeConfig, worker: str) -> TrainerAddressConfig:
    for trainer in config.all_trainers:
        if trainer.name == worker:
            return trainer
    names = ", ".join([AGENT, *(trainer.name for trainer in config.all_trainers)])
    raise ConfigError(f"--worker is {worker!r}; the workers of this configuration are {names}")


def _runs_with_room(experiment: Experiment) -> list[tuple[int, int]]:
    """The sub-models for which there is memory on this device."""
    runs = contiguous(len(experiment.chain.blocks))
    free = available_bytes()
    fitting = [run for run in runs if needed_bytes(experiment.chain, *run) <= free]
    if len(fitting) < len(runs):
        _log.warning("some sub-models do not fit in memory; they are left out", fit=len(fitting), free_bytes=free)
    return fitting


def _reference(runs: list[tuple[int, int]], flops: Sequence[float], known: KnownDevices | None) -> list[int]:
    """The indices of the reference among the sub-models that can be measured."""
    if len(runs) < REFERENCES:
        raise PlanError(
            f"{len(runs)} sub-models of the model's {len(flops)} blocks can be measured here; a latency table needs "
            f"{REFERENCES}"
        )
    if known is None:
        return representatives([sum(flops[first:stop]) for first, stop in runs])
    places: dict[Layers, int] = {vector(*run, len(flops)): index for index, run in enumerate(runs)}
    wanted = reference_of(known)
    if missing := [layers for layers in wanted if layers not in places]:
        raise PlanError(f"the reference of the known devices has sub-model {missing[0]}, which cannot be measured here")
    return [places[layers] for layers in wanted]


async def _rounds(
    timer: Timer, runs: Sequence[tuple[int, int]], steps: int, emit: Emit, *, leave_out: bool
) -> dict[tuple[int, int], float]:
    """Seconds of the sub-models. leave_out: those for which the trainer has no room, instead of its refusal."""
    means: dict[tuple[int, int], list[float]] = {run: [] for run in runs}
    order = random.Random(0)
    for number in range(ROUNDS):
        for place, run in enumerate(order.sample(runs, len(runs))):
            if run in means:
                try:
                    means[run].append(statistics.fmean(totals(await timer(*run, steps))))
                except RefusedError as refused:
                    if not (leave_out and is_of_the_blocks(refused, run)):
                        raise
                    _log.warning("a sub-model is left out", blocks=run, reason=str(refused))
                    del means[run]
            emit(PieceMeasured(number * len(runs) + place + 1, ROUNDS * len(runs)))
    return {run: statistics.median(times) for run, times in means.items()}


@asynccontextmanager
async def _timed_at(worker: str, experiment: Experiment, threads: AgentThreads) -> AsyncIterator[Timer]:
    async with measuring_session(experiment, threads) as session:
        yield timer_at(session.members[worker])
