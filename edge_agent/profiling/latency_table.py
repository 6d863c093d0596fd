"""Latency tables: sub-models [i, j) of a configuration's model, timed on this device or on one of its trainers.

Every round times each sub-model once, in an order of its own, and a time is the median over the rounds. So what disturbs the
machine for a while disturbs few rounds of many sub-models, not all of one.
"""

import asyncio
import random
import statistics
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass

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
    contiguous,
    reference_of,
    representatives,
    vector,
)
from edge_agent.profiling.events import PieceMeasured
from edge_agent.profiling.memory import available_bytes, needed_bytes
from edge_agent.profiling.timers import Timer, is_of_the_blocks, measuring_session, timer_at, timer_here
from shared.client.config import TrainerAddressConfig
from shared.errors import ConfigError, PlanError, RefusedError
from shared.events import Emit, ignore
from shared.placement import AGENT
from shared.training.device import prepare_process
from shared.training.step_seconds import totals

_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class MeasureSettings:
    """The measurements to make, and their number."""

    worker: str = AGENT
    device: str | None = None
    """Name of the device in the table; the worker's name where None."""
    representative: bool = False
    """The reference alone, from which a predictor tells the others."""
    rounds: int = 5
    repeats: int = 5
    """Steps that one round takes the mean of: on a device that is held to a share of its time some steps wait for it."""


async def measure_table(
    config: EdgeConfig, settings: MeasureSettings, known: KnownDevices | None, emit: Emit = ignore
) -> LatencyTable:
    """Measure the table of one worker.

    known: devices whose predictor says which ten tell most; without them those whose operations spread evenly are taken.
    Raises IsthmusError; ConfigError for a worker that is not configured, PlanError for a model with too few blocks.
    """
    target = None if settings.worker == AGENT else _trainer(config, settings.worker)
    trainers = () if target is None else (target,)
    config = config.model_copy(
        update={
            "trainer": TrainerAddressConfig(),
            "trainers": trainers,
            "placement": PlacementSection(),
            "deployment": config.deployment.model_copy(update={"cut": None, "staleness": 0}),  # without a replay
        }
    )
    prepare_process(config.compute.threads)
    experiment = await asyncio.to_thread(Experiment, config)
    try:
        flops = await asyncio.to_thread(experiment.block_operations)
        runs = _runs_with_room(experiment, settings)
        reference = _reference(runs, flops, known)
        if settings.representative:
            runs = [runs[index] for index in reference]
        with AgentThreads.started() as threads:
            timing = (
                nullcontext(timer_here(experiment, threads))
                if target is None
                else _timed_at(target.name, experiment, threads)
            )
            async with timing as timer:
                seconds = await _rounds(timer, runs, settings, emit)
    finally:
        await asyncio.to_thread(experiment.close)
    layers, runs = len(experiment.chain.blocks), list(seconds)
    reference = list(range(len(runs))) if settings.representative else _reference(runs, flops, known)
    return LatencyTable(
        model=config.model.factory,
        batch_size=experiment.batch_size,
        device=settings.device or settings.worker,
        layers=layers,
        reference=tuple(reference),
        samples=tuple(Sample(layers=vector(first, stop, layers), seconds=seconds[first, stop]) for first, stop in runs),
        flops=tuple(flops),
    )


def _trainer(config: EdgeConfig, worker: str) -> TrainerAddressConfig:
    for trainer in config.all_trainers:
        if trainer.name == worker:
            return trainer
    names = ", ".join([AGENT, *(trainer.name for trainer in config.all_trainers)])
    raise ConfigError(f"--worker is {worker!r}; the workers of this configuration are {names}")


def _runs_with_room(experiment: Experiment, settings: MeasureSettings) -> list[tuple[int, int]]:
    """The sub-models, on this device those for which there is memory."""
    runs = contiguous(len(experiment.chain.blocks))
    if settings.worker != AGENT:
        return runs
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
    if known.layers_ML.shape[1] != len(flops):
        raise PlanError(
            f"the predictor is of a model with {known.layers_ML.shape[1]} layers; this one has {len(flops)} blocks"
        )
    places: dict[Layers, int] = {vector(*run, len(flops)): index for index, run in enumerate(runs)}
    wanted = reference_of(known)
    if missing := [layers for layers in wanted if layers not in places]:
        raise PlanError(f"the predictor's reference has sub-model {missing[0]}, which cannot be measured here")
    return [places[layers] for layers in wanted]


async def _rounds(
    timer: Timer, runs: Sequence[tuple[int, int]], settings: MeasureSettings, emit: Emit
) -> dict[tuple[int, int], float]:
    """Seconds of the sub-models, without those for which the trainer has no room."""
    means: dict[tuple[int, int], list[float]] = {run: [] for run in runs}
    order = random.Random(0)
    for number in range(settings.rounds):
        for place, run in enumerate(order.sample(runs, len(runs))):
            if run in means:
                try:
                    means[run].append(statistics.fmean(totals(await timer(*run, settings.repeats))))
                except RefusedError as refused:
                    if settings.representative or not is_of_the_blocks(refused, run):
                        raise
                    _log.warning("a sub-model is left out", blocks=run, reason=str(refused))
                    del means[run]
            emit(PieceMeasured(number * len(runs) + place + 1, settings.rounds * len(runs)))
    return {run: statistics.median(times) for run, times in means.items()}


@asynccontextmanager
async def _timed_at(worker: str, experiment: Experiment, threads: AgentThreads) -> AsyncIterator[Timer]:
    async with measuring_session(experiment, threads) as session:
        yield timer_at(session.members[worker])
