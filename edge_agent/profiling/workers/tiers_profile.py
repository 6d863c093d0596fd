"""The profile of three tiers: what each block takes by samples on each worker, and what each link carries (paper 004).

Each block is timed alone, at three sizes of a batch, without a replay; a line goes through the times.
"""

import asyncio
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import structlog

from edge_agent.config import EdgeConfig
from edge_agent.experiment.agent_threads import AgentThreads
from edge_agent.experiment.experiment import Experiment
from edge_agent.placement_config import PlacementSection
from edge_agent.planning import (
    FLOAT32_BITS,
    BlockCosts,
    BlockSeconds,
    CodecCosts,
    Linear,
    MeasuredLink,
    Profile,
    ProfiledBlock,
    with_batch_size,
)
from edge_agent.planning.profile import TIERS
from edge_agent.profiling.block_costs import trained_bytes, try_blocks
from edge_agent.profiling.codec_times import Fit, codec_fits
from edge_agent.profiling.events import Estimated
from edge_agent.profiling.lines import line_through
from edge_agent.profiling.rounds import steps_of_a_round
from edge_agent.profiling.timers import measured_experiment, measuring_session, timer_here, trainer_clients
from edge_agent.profiling.trial import PLACED_WARM_UP_STEPS, placed_seconds
from edge_agent.profiling.workers.chain_profile import chain_experiment
from edge_agent.profiling.workers.costs_in_steps import costs_in_steps, tried_divisions, with_costs
from edge_agent.profiling.workers.measured_links import measured_link, shared_segments
from edge_agent.profiling.workers.measured_parts import MeasuredParts, ToMeasure
from edge_agent.profiling.workers.worker_measuring import WorkerMeasuring, settings_of
from edge_agent.sessions.open_session import OpenSession
from shared.errors import ConfigError, DataError, PlanError
from shared.events import Emit, ignore
from shared.model.features import specs_bytes
from shared.placement import AGENT, Placement
from shared.registry import codec_of_bits
from shared.training.step_seconds import StepSeconds

_log = structlog.get_logger(__name__)
PARTS_OF_A_BATCH = (0.25, 0.5, 1.0)
"""Sizes at which blocks are timed."""
STEPS_A_REPEAT = 2
"""Steps of training for each repeat of a block: they vary more than a block alone."""


async def profile_tiers(
    config: EdgeConfig, out: Path, repeats: int, emit: Emit = ignore, *, dry_run: bool = False
) -> Profile | None:
    """Measure the device and both trainers of a configuration, and write the profile to `out`.

    repeats: steps of each block at each size, at least. dry_run: ends before it begins, with the estimate that it emits, and
    returns None. Raises IsthmusError: ConfigError for more trainers or fewer, PlanError for a file of other workers, and for a
    model of which blocks use a weight together.
    """
    if len(config.all_trainers) != TIERS - 1:
        raise ConfigError(
            f"--tiers measures this device and {TIERS - 1} trainers, and trainers names {len(config.all_trainers)}"
        )
    without_replay = {"cut": None, "staleness": 0}
    config = config.model_copy(
        update={
            "placement": PlacementSection(),
            "deployment": config.deployment.model_copy(update=without_replay),
        }
    )
    async with measured_experiment(config, chain_experiment) as (experiment, threads):
        if experiment.chain.together:
            named = ", ".join(
                experiment.chain.blocks[block].name for block in min(map(sorted, experiment.chain.together))
            )
            raise PlanError(
                f"blocks {named} use a weight together, and three tiers are planned block by block; "
                "profile a chain in place of --tiers"
            )
        names = (AGENT, *(trainer.name for trainer in experiment.config.all_trainers))
        parts = await asyncio.to_thread(MeasuredParts, out, settings_of(experiment, "three tiers", names, repeats))
        pieces = _pieces(experiment)
        links = list(combinations(names, 2))
        measuring = WorkerMeasuring(experiment, dict.fromkeys(names, pieces), links, steps_of_a_round(repeats), parts)
        for line in measuring.costs(await threads.compute.run(try_blocks, experiment)):
            emit(Estimated(line))
        divisions = tried_divisions(experiment, names)
        left, steps = len(divisions.keys() - parts.done.steps.keys()), STEPS_A_REPEAT * repeats
        emit(Estimated(f"in steps: {left} divisions, {PLACED_WARM_UP_STEPS + steps} steps of training each"))
        if dry_run:
            return None
        async with measuring_session(experiment, threads) as session:
            await measuring.measure(session, {AGENT: timer_here(experiment, threads)}, emit)
            if parts.done.segments is None:
                parts.add_segments(await _segments(session, links, parts))
                await asyncio.to_thread(parts.save)
        measured = _measured(experiment, names, parts, await threads.codec.run(_codecs, experiment.config, repeats))
        await _try(experiment, divisions, threads, steps, parts)
        tried = [(divisions[what], seconds) for what, seconds in parts.done.steps.items()]
        ahead = replace(measured, samples_ahead=experiment.recipe.samples_ahead)
        profile = with_costs(measured, await asyncio.to_thread(costs_in_steps, ahead, tried))
        await asyncio.to_thread(parts.finish, profile)
        return profile


def _pieces(experiment: Experiment) -> list[ToMeasure]:
    """List each block at each size: no smaller than a part of it may be."""
    return [
        ToMeasure(block, block + 1, samples)
        for block in range(len(experiment.chain.blocks))
        for samples in sorted(
            {max(_least(experiment, block), round(part * experiment.batch_size)) for part in PARTS_OF_A_BATCH}
        )
    ]


def _least(experiment: Experiment, block: int) -> int:
    """Return the fewest samples of a part of a block."""
    return min(experiment.facts.blocks[block].min_samples, experiment.batch_size)


async def _segments(session: OpenSession, links: Sequence[tuple[str, str]], parts: MeasuredParts) -> list[list[int]]:
    alone = {}
    for near, far in links:
        link = parts.link(near, far)
        assert link is not None, "all links are measured"
        alone[near, far] = link
    return await shared_segments(lambda near, far: measured_link(session, near, far), alone)


async def _try(
    experiment: Experiment,
    divisions: Mapping[str, Placement],
    threads: AgentThreads,
    steps: int,
    parts: MeasuredParts,
) -> None:
    """Train some steps of each division that was not tried yet, and keep what they take. One that is not permitted is left out,
    with a warning."""
    lossless = {"codec": "fp32", "downlink_codec": "fp32"}
    deployment = experiment.config.deployment.model_copy(update=lossless)
    config = experiment.config.model_copy(update={"deployment": deployment, "placement": PlacementSection()})
    async with trainer_clients(experiment) as clients:
        for what in [what for what in divisions if what not in parts.done.steps]:
            tried = await asyncio.to_thread(chain_experiment, config)
            try:
                tried.begin_at(tried.completed(divisions[what]))
                parts.add_step(what, await placed_seconds(clients, tried, threads, steps))
                await asyncio.to_thread(parts.save)
            except (ConfigError, DataError) as why:
                _log.warning("what messages cost is less certain: a division was not tried", of=what, reason=str(why))
            finally:
                await asyncio.to_thread(tried.close)


def _codecs(config: EdgeConfig, repeats: int) -> dict[str, CodecCosts]:
    """Time the codec of each width that the engine may choose. Computes."""
    found: dict[str, CodecCosts] = {}
    for bits in sorted({bits for bits in config.engine.bits if bits < FLOAT32_BITS}):
        name = codec_of_bits(bits, config.deployment.first_codec)
        encode, decode = codec_fits(name, repeats, config)
        found[name] = CodecCosts(bits, _by_bytes(encode), _by_bytes(decode))
    return found


def _by_bytes(fit: Fit) -> Linear:
    return Linear(fit["seconds"], fit["seconds_per_byte"])


def _measured(
    experiment: Experiment, names: Sequence[str], parts: MeasuredParts, codecs: Mapping[str, CodecCosts]
) -> Profile:
    """Return the profile of blocks that were measured alone, and of messages that cost nothing."""
    chain, batch = experiment.chain, experiment.batch_size
    blocks = tuple(
        ProfiledBlock(
            block.name,
            trained_bytes(block),
            trained_bytes(block),
            _least(experiment, block.index),
            experiment.is_whole(block.index),
            experiment.is_raw(block.index),
        )
        for block in chain.blocks
    )
    costs = BlockCosts(
        blocks={name: _worker(experiment, name, parts) for name in names},
        feature_bytes=tuple(specs_bytes(feature) / batch for feature in chain.features),
        weight_bytes=tuple(block.bytes for block in blocks),
        label_bytes=specs_bytes(experiment.labels) / batch,
        codecs=codecs,
    )
    links = {
        (near, far): MeasuredLink(link.uplink, link.downlink, link.round_trip_seconds)
        for near, far in combinations(names, 2)
        if (link := parts.link(near, far)) is not None
    }
    hops = list(links)
    profile = Profile(
        model=experiment.config.model.factory,
        batch_size=batch,
        blocks=blocks,
        feature_bytes=(),
        gradient_bytes=(),
        workers=(),
        links=links,
        by_samples=costs,
        shared_segments=tuple(tuple(hops[number] for number in segment) for segment in parts.done.segments or []),
    )
    return with_batch_size(profile, batch)


def _worker(experiment: Experiment, name: str, parts: MeasuredParts) -> tuple[BlockSeconds, ...]:
    """Return the times of the blocks on one worker. PlanError where it has no room for a block."""
    measured: dict[int, list[tuple[int, StepSeconds]]] = {}
    for piece in _pieces(experiment):
        rounds = parts.rounds(name, piece)
        if not rounds:
            raise PlanError(f"worker {name!r} has no room for block {piece.first}, so it is no tier; leave it out")
        middle = StepSeconds(*map(statistics.median, zip(*rounds, strict=True)))
        measured.setdefault(piece.first, []).append((piece.samples, middle))
    return tuple(
        BlockSeconds(
            _line(sizes, lambda step: step.forward),
            _line(sizes, lambda step: step.backward),
            statistics.fmean(step.update for _, step in sizes),
        )
        for sizes in measured.values()
    )


def _line(sizes: Sequence[tuple[int, StepSeconds]], figure: Callable[[StepSeconds], float]) -> Linear:
    return line_through([(samples, figure(step)) for samples, step in sizes])
