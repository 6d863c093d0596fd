"""The profile of this device and one trainer (paper 000, 5.2): what either side takes at each cut, and what bits and K cost."""

import asyncio
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

import structlog

from edge_agent.adaptation.link_probe import probe_round_trip
from edge_agent.config import EdgeConfig
from edge_agent.experiment.agent_threads import AgentThreads
from edge_agent.experiment.experiment import Experiment
from edge_agent.planning.measurements import FLOAT32_BITS, Linear
from edge_agent.planning.profile import EDGE, NO_OVERHEAD, TRAINER, Profile, pair_profile
from edge_agent.profiling.block_costs import TriedBlock, crossing_bytes, profiled_blocks, try_blocks
from edge_agent.profiling.calibrate_on import CalibrateOn
from edge_agent.profiling.calibration_copies import DeviceCopies, TrainerCopies
from edge_agent.profiling.calibration_trainings import (
    Calibration,
    CalibrationSettings,
    Trainings,
    bit_widths,
    wanted_cuts,
)
from edge_agent.profiling.codec_times import Fit, codec_fits, narrow_codec, spread
from edge_agent.profiling.events import Estimated
from edge_agent.profiling.lines import line_through
from edge_agent.profiling.profile_parts import PartFile
from edge_agent.profiling.rounds import Run, runs_with_room, steps_of_a_round
from edge_agent.profiling.timers import measured_experiment, measuring_session, timer_here, trainer_clients
from edge_agent.profiling.trial import busy_seconds, turn_seconds
from edge_agent.profiling.workers.measured_parts import MeasuredParts, ToMeasure
from edge_agent.profiling.workers.worker_measuring import WorkerMeasuring, settings_of
from shared.client.trainer import TrainerClient
from shared.errors import PlanError
from shared.events import Emit, ignore
from shared.model.features import specs_bytes
from shared.placement import AGENT
from shared.registry import codec_bits, codec_spec
from shared.training.policies import KeptGraph, Replay
from shared.training.step_seconds import totals

_log = structlog.get_logger(__name__)

AT_ONCE = f"{AGENT} at K = 0"
"""This device without the second forward pass of late gradients."""
DEFAULT_MAX_STALENESS = 5
"""Largest staleness that paper 000 finds harmless for its models (Fig. 3, Table 4); a calibration finds it out
instead."""
MOST_TRIALS = 3
"""Cuts at which the overhead is measured."""
TRIAL_STEPS = 3
"""Real steps with late gradients for each repeat: they come in bursts."""


async def profile_pair(
    config: EdgeConfig,
    out: Path,
    repeats: int,
    emit: Emit = ignore,
    *,
    calibration: CalibrationSettings | None = None,
    dry_run: bool = False,
) -> Profile | None:
    """Measure this device and the trainer of a configuration, and write the profile to `out`.

    repeats: steps that are timed at each cut, at least; they are spread over the rounds. calibration: how to calibrate it, too.
    dry_run: ends before it begins, with the estimate that it emits, and returns None. Raises IsthmusError, for what cannot be
    calibrated before anything is measured; PlanError for a file of another model.
    """
    async with measured_experiment(config) as (experiment, threads):
        here = None
        if calibration is not None:
            wanted_cuts(experiment, calibration)
            bit_widths(calibration)
            here = DeviceCopies(experiment, threads) if calibration.on is CalibrateOn.DEVICE else None
        settings = settings_of(experiment, "pair", (EDGE, TRAINER), repeats)
        parts = await asyncio.to_thread(MeasuredParts, out, settings)
        trainings = PartFile(out.with_name(out.name + ".trainings"), Trainings)
        pieces = _pieces(experiment)
        measuring = WorkerMeasuring(experiment, pieces, [], steps_of_a_round(repeats), parts)
        tried = await threads.compute.run(try_blocks, experiment)
        for line in measuring.costs(tried):
            emit(Estimated(line))
        emit(Estimated(f"in steps: up to {2 * MOST_TRIALS + 1} trainings of {TRIAL_STEPS * repeats} steps each"))
        if dry_run:
            return None
        timers = {AGENT: timer_here(experiment, threads, Replay), AT_ONCE: timer_here(experiment, threads, KeptGraph)}
        async with measuring_session(experiment, threads) as session:
            await measuring.measure(session, timers, emit)
        seconds = {name: _seconds(parts, name, of_one) for name, of_one in pieces.items()}
        fits = await threads.codec.run(codec_fits, narrow_codec(experiment.config), repeats, experiment.config)
        async with trainer_clients(experiment) as clients:
            client = clients[experiment.config.only_trainer.name]
            overheads = await _overheads(experiment, threads, repeats, client, seconds, fits[0])
            round_trip_seconds = await probe_round_trip(experiment.config)
            profile = _of_parts(experiment, tried, seconds, fits, overheads, round_trip_seconds)
            if calibration is not None:
                copies = here or TrainerCopies(experiment, client)
                profile = await Calibration(experiment, calibration, copies, trainings, emit).of(profile)
        await asyncio.to_thread(parts.finish, profile)
        await asyncio.to_thread(trainings.remove)
        return profile


def _pieces(experiment: Experiment) -> dict[str, list[ToMeasure]]:
    """List the runs of blocks on either side of each cut, by worker. PlanError where this device has room for none."""
    chain, batch = experiment.chain, experiment.batch_size
    blocks = len(chain.blocks)
    cuts = [cut for cut in range(max(1, chain.first_boundary), blocks + 1) if not chain.parts_tied(0, cut)]
    before = runs_with_room(chain, [(0, cut) for cut in cuts])
    if not before:
        raise PlanError("this device has room for no run of blocks that it could have beside a trainer")
    here = [ToMeasure(*run, batch) for run in before]
    there = [ToMeasure(cut, blocks, batch) for _, cut in before if cut < blocks]
    return {AGENT: here, AT_ONCE: here, experiment.config.only_trainer.name: there}


def _seconds(parts: MeasuredParts, name: str, pieces: Sequence[ToMeasure]) -> dict[Run, list[float]]:
    """Return the seconds of a step of each run in every round; nothing of those for which the worker has no room."""
    rounds = {piece.run: parts.rounds(name, piece) for piece in pieces}
    return {run: totals(each) for run, each in rounds.items() if each}


async def _overheads(
    experiment: Experiment,
    threads: AgentThreads,
    repeats: int,
    client: TrainerClient,
    seconds: Mapping[str, Mapping[Run, Sequence[float]]],
    encode: Fit,
) -> tuple[Linear, float]:
    """Measure the edge's time in a real step beyond T1: with late gradients, and at K = 0, where it idles in
    between.

    From the last cut that is split, where the edge computes most, up to the first at which it does not bound a step.
    Each with and without compression: what its bytes cost, a cut cannot tell from what else is different there.
    At K = 0 at the first cut, where the edge computes least: the pace of a device drifts, and of little it is little.
    None where nothing learns there.
    """
    config, chain = experiment.config, experiment.chain
    means = {cut: _mean(each) for (_, cut), each in seconds[AGENT].items() if cut < len(chain.blocks)}
    cuts = [cut for cut in means if chain.gradients_return(cut)]
    if not cuts:
        return NO_OVERHEAD, 0.0
    first, last, narrow = cuts[0], cuts[-1], narrow_codec(config)
    turn = await turn_seconds(client, config, first, threads, repeats)
    points: list[tuple[float, float]] = []
    for cut in cuts[: -1 - MOST_TRIALS : -1]:
        size = specs_bytes(chain.features[cut])
        encode_seconds = encode["seconds_per_byte"] * size + encode["seconds"]
        found = 0
        for codec, alone in (("fp32", means[cut]), (narrow, means[cut] + encode_seconds)):
            busy = await busy_seconds(client, config, cut, codec, threads, TRIAL_STEPS * repeats)
            if busy is not None:
                carried_bytes = size * (codec_bits(codec) / FLOAT32_BITS + 1)
                points.append((carried_bytes, max(busy - alone, 0.0)))
                found += 1
        if not found:
            break
    if not points:
        _log.warning("no overhead measured: the edge is not what bounds a step at this cut", cut=last)
    return line_through(points), max(turn - _mean(seconds[AT_ONCE][0, first]), 0.0)


def _of_parts(
    experiment: Experiment,
    tried: Sequence[TriedBlock],
    seconds: Mapping[str, Mapping[Run, Sequence[float]]],
    fits: tuple[Fit, Fit],
    overheads: tuple[Linear, float],
    round_trip_seconds: float | None,
) -> Profile:
    chain, (encode, decode) = experiment.chain, fits
    blocks = len(chain.blocks)
    feature_bytes, gradient_bytes = crossing_bytes(chain)
    trainer = seconds[experiment.config.only_trainer.name]
    edge, at_once = ([seconds[name].get((0, cut)) for cut in range(blocks + 1)] for name in (AGENT, AT_ONCE))
    cloud = [*(trainer.get((cut, blocks)) for cut in range(blocks)), [0.0]]
    return pair_profile(
        model=experiment.config.model.factory,
        batch_size=experiment.batch_size,
        blocks=profiled_blocks(chain, tried),
        feature_bytes=tuple(feature_bytes),
        gradient_bytes=tuple(gradient_bytes),
        edge_seconds=_means(edge),
        cloud_seconds=_means(cloud),
        encode=Linear(encode["seconds"], encode["seconds_per_byte"]),
        min_bits=None,
        max_staleness=DEFAULT_MAX_STALENESS,
        codec_family=codec_spec(narrow_codec(experiment.config)).family,
        serial_edge_seconds=_means(at_once),
        overhead=overheads[0],
        serial_overhead_seconds=overheads[1],
        round_trip_seconds=round_trip_seconds,
        remarks={
            "decode": decode,
            "edge_seconds_spread": [spread(each) for each in edge],
            "cloud_seconds_spread": [spread(each) for each in cloud],
            "encode_spread_seconds": encode["spread_seconds"],
        },
    )


def _mean(seconds: Sequence[float]) -> float:
    """Not the median: on a device that is held to a share of its time some steps wait for it, and all of them count."""
    return statistics.fmean(seconds)


def _means(by_cut: Sequence[Sequence[float] | None]) -> tuple[float | None, ...]:
    return tuple(None if each is None else _mean(each) for each in by_cut)
