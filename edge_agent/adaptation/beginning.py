"""The beginning of a run: its trainer and its first deployment, as configured, or as planned for links as probes find them."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial

import structlog

from edge_agent.adaptation.candidates.first_trainer import begin_with_fastest, first_trainer
from edge_agent.adaptation.engine_inputs import check_measured, load_run_profile, question_of
from edge_agent.adaptation.link_probe import probe_link
from edge_agent.config import EdgeConfig
from edge_agent.experiment.candidates import has_candidates, policy_of
from edge_agent.experiment.exchanging import carried_shares
from edge_agent.experiment.experiment import Experiment
from edge_agent.experiment.placing import member_on
from edge_agent.experiment.small_share import warn_of_small_share
from edge_agent.planner_names import FIXED
from edge_agent.planning import Layout, Plan, Profile, Rates, conditions_of, first_layout, load_profile
from edge_agent.planning.group_choice import Carried, best_of_group, group_plans
from edge_agent.planning.profile import Hop
from shared.client.config import TrainerAddressConfig
from shared.client.credentials import trainer_access
from shared.client.retry import Retry
from shared.client.trainer import TrainerClient
from shared.concurrency.tasks import gathered
from shared.errors import ConfigError, DataError, ModelError, PlanError, UnreachableError
from shared.placement import AGENT, Placement
from shared.registry import codec_bits
from shared.training.slices import may_be_cut

_log = structlog.get_logger(__name__)


async def begin_run(experiment: Experiment, upgraded: Retry, *, is_new: bool) -> Profile | None:
    """Have a run begin, and return the profile by which it goes on choosing; None where it chooses no more.

    upgraded: waits for trainers that are about to be upgraded. is_new: False for a run that goes on, as it was left. Raises
    IsthmusError: PlanError for a profile that cannot be read, is of something else, or leaves nothing to choose.
    """
    config = experiment.config
    policy = await asyncio.to_thread(policy_of, config)
    if is_new and policy == FIXED and has_candidates(config):
        experiment.begin_with(await upgraded.run(partial(first_trainer, config)))
    if config.member is not None and config.engine.profile is not None:
        await _begin_as_member(experiment)
        return None
    profile = await asyncio.to_thread(load_run_profile, experiment)
    if is_new and policy != FIXED and profile is not None:
        await upgraded.run(partial(begin_with_fastest, experiment, profile))
        profile = profile.named(experiment.placement.workers)
    start = await _planned_start(experiment, profile) if profile is not None and is_new and policy == FIXED else None
    if start is not None:
        experiment.begin_at(experiment.laid_out(start, experiment.placement))
    elif is_new:
        await asyncio.to_thread(warn_of_small_share, experiment)
    return profile


async def _planned_start(experiment: Experiment, profile: Profile) -> Layout | None:
    """Plan the first layout; None if the configuration names a cut or a placement, or the only link cannot be probed.

    Of several links, those that cannot be probed from here are as the profile has them. Raises PlanError if nothing may be
    chosen.
    """
    config = experiment.config
    if config.deployment.cut is not None or config.placement.given:
        return None
    trainers = [trainer for trainer in config.all_trainers if trainer.name in experiment.trainers]
    links = await _probed(config, trainers)
    if len(trainers) == 1 and not links:
        _log.warning("the link could not be probed, so the run begins with half of the blocks here")
        return None
    question = question_of(experiment, profile)
    planned = await asyncio.to_thread(lambda: first_layout(question, conditions_of(question.profile, links)))
    _log.info(
        "beginning as planned",
        deployment=str(planned),
        links={
            far: {
                "uplink_bits_per_second": round(rates.uplink),
                "downlink_bits_per_second": round(rates.downlink),
                "round_trip_seconds": rates.round_trip_seconds,
            }
            for (_, far), rates in links.items()
        },
    )
    return planned


async def _probed(config: EdgeConfig, trainers: Sequence[TrainerAddressConfig]) -> dict[Hop, Rates]:
    """Return the links from here, as far as probes find their rates."""
    found = await gathered(*(probe_link(config, trainer) for trainer in trainers))
    return {
        (AGENT, trainer.name): Rates(link.uplink, link.downlink, link.round_trip_seconds or 0.0)
        for trainer, link in zip(trainers, found, strict=True)
        if link.uplink is not None and link.downlink is not None
    }


async def _begin_as_member(experiment: Experiment) -> None:
    """Have a member begin with the best of all blocks here and any cut, by its profile and what a probe finds of the link.

    It keeps that to its end; only its links are asked, and no other member. A trainer that is away is waited for as long as
    by any run that begins (`trainer.connect_timeout_seconds`). Without a probe the rates of the profile count. Raises
    PlanError for a profile that cannot be read, is of something else, or leaves no way, and where nothing is known of the
    link, and AccessError where one side does not trust the other's certificate.
    """
    profile = await asyncio.to_thread(_profile_of, experiment)
    rates = await _rates(experiment.config, profile)
    plans, placement = await asyncio.to_thread(_planned_member, experiment, profile, rates)
    best = best_of_group(plans)
    _log.info(
        "beginning as planned",
        blocks_here=best.blocks_here,
        blocks=len(profile),
        samples_per_second=round(best.samples_per_second, 4),
        uplink_bits_per_second=round(rates.uplink),
        downlink_bits_per_second=round(rates.downlink),
        round_trip_seconds=rates.round_trip_seconds,
    )
    if (alone := plans[0]).members is None:
        _log.warning(
            "one device alone would do as many samples a second as this group, or more",
            blocks_there=alone.blocks_here,
            alone=round(alone.samples_per_second, 4),
            group=round(best.samples_per_second, 4),
        )
    experiment.begin_at(placement)


async def _rates(config: EdgeConfig, profile: Profile) -> Rates:
    """Return what a probe finds of the link, once the trainer answers, or else what the profile knows. Raises PlanError."""
    (trainer,) = config.all_trainers
    with suppress(UnreachableError):
        async with TrainerClient(trainer, config.link, access=trainer_access(trainer, config.tls)):
            pass  # it answers, so that the probe does not end at once
    link = await probe_link(config, trainer)
    if link.uplink is None or link.downlink is None:
        return profile.rates(*profile.names)
    return Rates(link.uplink, link.downlink, link.round_trip_seconds or 0.0)


def _planned_member(experiment: Experiment, profile: Profile, rates: Rates) -> tuple[list[Plan], Placement]:
    member, deployment = experiment.config.member, experiment.config.deployment
    assert member is not None, "a member is planned"
    assert member.size is not None, "a configuration without it is refused"
    placements = dict(_permitted(experiment))
    carried = Carried(
        codec_bits(deployment.first_codec),
        *carried_shares(member),
        whole_blocks=not may_be_cut(experiment.recipe),
    )
    plans = group_plans(profile, rates, member.size, carried, placements.keys())
    return plans, placements[best_of_group(plans).blocks_here]


def _permitted(experiment: Experiment) -> Iterator[tuple[int, Placement]]:
    """Return the placements that the model and the permissions leave, by the number of blocks here."""
    blocks = len(experiment.chain.blocks)
    for cut in range(1, blocks + experiment.config.engine.allow_edge_only):
        try:
            yield cut, member_on(experiment, cut)
        except (ConfigError, DataError, ModelError):
            continue


def _profile_of(experiment: Experiment) -> Profile:
    """Read the profile of the device and its trainer. Raises PlanError."""
    config, workers = experiment.config, experiment.placement.workers
    path = config.engine.profile
    assert path is not None, "a configuration without it begins as it says"
    profile = load_profile(path)
    check_measured(profile, tuple(block.name for block in experiment.chain.blocks), config.data.batch_size, str(path))
    if len(profile.workers) != len(workers) and set(workers) <= set(profile.names):
        profile = profile.among(workers)
    if len(profile.workers) != len(workers):
        raise PlanError(
            f"{path}: the workers are {', '.join(profile.names)}, and a member is planned with {AGENT} and one trainer; "
            "measure those two with edge-agent profile"
        )
    profile = profile.named(workers)
    return profile.with_gradient_bits(codec_bits(experiment.deployment.downlink_codec))
