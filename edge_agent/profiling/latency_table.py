"""Latency tables: sub-models [i, j) of a configuration's model, timed on this device or on one of its trainers.

A time is the median over the rounds.
"""

import asyncio
import statistics
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext

from edge_agent.config import EdgeConfig
from edge_agent.experiment.agent_threads import AgentThreads
from edge_agent.experiment.experiment import Experiment
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
from edge_agent.profiling.rounds import ROUNDS, Run, in_rounds, mean_step, runs_with_room, steps_of_a_round
from edge_agent.profiling.timers import Timer, measured_experiment, measuring_session, timer_at, timer_here
from shared.client.config import TrainerAddressConfig
from shared.errors import ConfigError, PlanError
from shared.events import Emit, ignore
from shared.placement import AGENT
from shared.training.step_seconds import StepSeconds, totals


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
        runs = contiguous(layers)
        if target is None:
            runs = runs_with_room(experiment.chain, runs)
        reference = _reference(runs, flops, known)
        if known is not None:
            runs = [runs[index] for index in reference]
        timing = (
            nullcontext(timer_here(experiment, threads))
            if target is None
            else _timed_at(target.name, experiment, threads)
        )
        async with timing as timer:
            seconds = await _rounds(timer, worker, runs, steps_of_a_round(repeats), emit, leave_out=known is None)
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
    timer: Timer, worker: str, runs: Sequence[Run], steps: int, emit: Emit, *, leave_out: bool
) -> dict[Run, float]:
    """Seconds of the sub-models. leave_out: as in `mean_step`."""
    means: dict[Run, list[StepSeconds]] = {run: [] for run in runs}
    for done, (_, run) in enumerate(in_rounds(runs), start=1):
        if run in means:
            mean = await mean_step(timer, worker, run, steps, leave_out=leave_out)
            if mean is None:
                del means[run]
            else:
                means[run].append(mean)
        emit(PieceMeasured(done, ROUNDS * len(runs)))
    return {run: statistics.median(totals(rounds)) for run, rounds in means.items()}


@asynccontextmanager
async def _timed_at(worker: str, experiment: Experiment, threads: AgentThreads) -> AsyncIterator[Timer]:
    async with measuring_session(experiment, threads) as session:
        yield timer_at(session.members[worker])
