"""The engine of a run, from its configuration: the profile, adjusted to it, and the space of its choices."""

import math
from dataclasses import replace

import structlog

from edge_agent.config import EngineSection
from edge_agent.experiment.candidates import policy_of
from edge_agent.experiment.experiment import Experiment, has_one_cut
from edge_agent.planner_names import BEST
from edge_agent.planning import (
    FLOAT32_BITS,
    Engine,
    EngineConfig,
    Profile,
    Question,
    SearchSpace,
    layout_of,
    load_profile,
)
from shared.errors import ConfigError, DataError, ModelError, PlanError
from shared.placement import AGENT, chain_workers
from shared.registry import bit_widths, codec_bits, codec_of_bits, codec_spec

_log = structlog.get_logger(__name__)


def load_run_profile(experiment: Experiment) -> Profile | None:
    """Load the profile that `engine.profile` names, and check it against the experiment; None if it names none.

    Warns if the profile was measured with other codecs than the engine may choose.
    Raises PlanError for a profile that cannot be read or is of another model, and ConfigError if a schedule would
    change K or the bits as well, or if the placement is neither of two workers on one cut nor a chain, and the profile has no
    times by samples.
    """
    config = experiment.config
    path = config.engine.profile
    if path is None:
        return None
    if not isinstance(config.deployment.staleness, int):
        raise ConfigError(
            "deployment.staleness is a schedule and engine.profile is set, which would both change K; set "
            "engine.max_staleness instead of the schedule"
        )
    if config.deployment.follows_codecs:
        raise ConfigError(
            "deployment.codec is a schedule and engine.profile is set, which would both change the bits; set engine.bits "
            "instead of the schedule"
        )
    profile = load_profile(path)
    names = tuple(block.name for block in experiment.chain.blocks)
    check_measured(profile, names, config.data.batch_size, str(path))
    if has_one_cut(experiment.placement):
        return _of_two(profile, experiment, str(path))
    if profile.by_samples is not None:
        return _of_tiers(profile, experiment, str(path))
    if chain_workers(experiment.placement) is None:
        raise ConfigError(
            "engine.profile is set and the placement is not of workers that each run the next blocks, so there is no cut for "
            "the engine to move; leave one of them out, or measure three tiers with edge-agent profile --tiers"
        )
    return _of_a_chain(profile, experiment, str(path))


def _of_two(profile: Profile, experiment: Experiment, where: str) -> Profile:
    config = experiment.config
    if len(profile.workers) != 2 and set(experiment.placement.workers) <= set(profile.names):
        profile = profile.among(experiment.placement.workers)
    if len(profile.workers) != 2:
        raise PlanError(
            f"{where}: the workers are {', '.join(profile.names)}, and the placement has two; measure those two with "
            "edge-agent profile"
        )
    others = [bits for bits in uncalibrated_bits(profile, config.deployment.first_codec) if bits in config.engine.bits]
    if others:
        _log.warning(
            "the profile timed and calibrated codecs of another family: its time of encoding is a guess, and its min_bits "
            "do not count; measure it again with edge-agent profile",
            bits=others,
            codec_family=profile.codec_family,
        )
    # More cuts may have been permitted when the profile was measured. An unmeasured cut is never chosen.
    profile = profile.named(experiment.placement.workers)
    profile = replace(profile, by_samples=None, shared_segments=())
    edge, _ = profile.workers
    permitted = edge.replayed.copy()
    for cut in range(1, len(profile) + 1):
        if not _is_permitted(experiment, cut):
            permitted[0, cut] = math.nan
    if profile.max_staleness is None:
        profile = replace(profile, max_staleness=config.deployment.first_staleness)
    return profile.with_worker(replace(edge, replayed=permitted))


def _of_a_chain(profile: Profile, experiment: Experiment, where: str) -> Profile:
    workers = experiment.placement.workers
    if tuple(name for name in profile.names if name in workers) != workers:
        raise PlanError(
            f"{where}: the stages are {', '.join(profile.names)}, and the placement's workers are {', '.join(workers)}; they "
            "must have the same names in the same order"
        )
    return _of_this_run(profile.among(workers), experiment)


def _of_tiers(profile: Profile, experiment: Experiment, where: str) -> Profile:
    workers, chain = experiment.placement.workers, experiment.chain
    if set(profile.names) != set(workers) or profile.names[0] != AGENT:
        raise PlanError(
            f"{where}: the tiers are {', '.join(profile.names)}, and the placement's workers are {', '.join(workers)}; they "
            f"must be the same, with {AGENT} first, also those without blocks"
        )
    if chain.together:
        named = ", ".join(chain.blocks[block].name for block in min(map(sorted, chain.together)))
        raise PlanError(
            f"blocks {named} use a weight together, and three tiers are planned block by block; leave engine.profile out"
        )
    blocks = [
        replace(
            block,
            min_samples=experiment.facts.blocks[index].min_samples,
            whole=experiment.is_whole(index),
            reads_raw=experiment.is_raw(index),
        )
        for index, block in enumerate(profile.blocks)
    ]
    profile = replace(profile, blocks=tuple(blocks), samples_ahead=experiment.recipe.samples_ahead)
    return _of_this_run(profile, experiment)


def _of_this_run(profile: Profile, experiment: Experiment) -> Profile:
    # Raw samples may have been permitted to cross when it was measured. An unmeasured cut is never chosen.
    first = profile.worker(AGENT).replayed.copy()
    first[0, : experiment.chain.first_boundary] = math.nan
    if profile.max_staleness is None:
        profile = replace(profile, max_staleness=experiment.config.deployment.first_staleness)
    return profile.with_worker(replace(profile.worker(AGENT), replayed=first))


def _is_permitted(experiment: Experiment, cut: int) -> bool:
    """Tell whether two workers may cut the model there, by the model and by the permissions for samples and labels."""
    try:
        experiment.cut_at((cut,), experiment.placement)
    except (ConfigError, DataError, ModelError):
        return False
    return True


def check_measured(measured: Profile, names: tuple[str, ...], batch_size: int, where: str) -> None:
    """Refuse a profile of another model or batch size. Raises PlanError, beginning with `where`."""
    measured_names = tuple(block.name for block in measured.blocks)
    if measured_names != names:
        raise PlanError(
            f"{where}: the profile is of {measured.model} with the blocks {', '.join(measured_names)[:100]}, and the model has "
            f"{', '.join(names)[:100]}; measure this model with edge-agent profile"
        )
    if measured.batch_size != batch_size:
        raise PlanError(
            f"{where}: the profile is for batches of {measured.batch_size} and data.batch_size is {batch_size}; measure it "
            "again with edge-agent profile, or change the batch size"
        )


def uncalibrated_bits(profile: Profile, codec: str) -> tuple[int, ...]:
    """List the widths below 32, rising, whose codec in a run configured with `codec` is not of the profile's family."""
    narrow = [bits for bits in bit_widths() if bits < FLOAT32_BITS]
    return tuple(bits for bits in narrow if codec_spec(codec_of_bits(bits, codec)).family != profile.codec_family)


def make_engine(experiment: Experiment, profile: Profile) -> Engine:
    """Make the engine of a run, by a profile that `load_run_profile` has read. PlanError if it leaves nothing to choose."""
    question = question_of(experiment, profile)
    space = question.space
    if policy_of(experiment.config) == BEST:  # which has the device alone among its candidates
        space = replace(space, allow_edge_only=False)
    config, layout = engine_config(experiment.config.engine), layout_of(experiment.placement, codec_bits)
    return Engine(question.profile, space, layout, config, experiment.steps)


def engine_config(settings: EngineSection) -> EngineConfig:
    """Return how eager the engine is, among layouts and among trainers."""
    return EngineConfig(
        margin=settings.margin, dwell_seconds=settings.dwell_seconds, window_seconds=settings.window_seconds
    )


def question_of(experiment: Experiment, profile: Profile) -> Question:
    """Return what a run asks: its profile, adjusted, and the deployments that configuration and model let it choose from."""
    config = experiment.config
    space = SearchSpace(
        config.engine.bits,
        allow_edge_only=config.engine.allow_edge_only,
        inputs_to=frozenset(config.privacy.inputs_to),
        labels_to=experiment.labels_to,
        uncalibrated_bits=uncalibrated_bits(profile, config.deployment.first_codec),
    )
    return Question(adjust_profile(profile, config.engine, experiment.deployment.downlink_codec), space)


def adjust_profile(profile: Profile, settings: EngineSection, downlink_codec: str) -> Profile:
    """Return the profile with the K and the gradients of this configuration."""
    if settings.max_staleness is not None:
        profile = replace(profile, max_staleness=settings.max_staleness)
    # The schema has float32 error gradients. The engine does not choose the downlink's codec.
    return profile.with_gradient_bits(codec_bits(downlink_codec))
