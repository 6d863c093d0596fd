"""The first deployment of a run that names none: the plan for the links as probes find them."""

import asyncio
from collections.abc import Sequence

import structlog

from edge_agent.adaptation.engine_inputs import adjust_profile, search_space
from edge_agent.adaptation.link_probe import probe_link
from edge_agent.config import EdgeConfig
from edge_agent.experiment.experiment import Experiment
from edge_agent.planning import Layout, Profile, Question, Rates, SearchSpace, conditions_of, first_layout
from edge_agent.planning.profile import Hop
from shared.client.config import TrainerAddressConfig
from shared.concurrency.tasks import gathered
from shared.placement import AGENT

_log = structlog.get_logger(__name__)


async def planned_start(experiment: Experiment, profile: Profile) -> Layout | None:
    """Plan the first layout; None if the configuration names a cut or a placement, or the only link cannot be probed.

    Of several links, those that cannot be probed from here are as the profile has them. Raises PlanError if nothing may be
    chosen.
    """
    config = experiment.config
    if config.deployment.cut is not None or config.placement.given:
        return None
    usable = adjust_profile(profile, config.engine, experiment.deployment.downlink_codec)
    trainers = [trainer for trainer in config.all_trainers if trainer.name in experiment.trainers]
    links = await _probed(config, trainers)
    if len(trainers) == 1 and not links:
        _log.warning("the link could not be probed, so the run begins with half of the blocks here")
        return None
    planned = await asyncio.to_thread(_planned, usable, links, search_space(experiment, profile))
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


def _planned(profile: Profile, links: dict[Hop, Rates], space: SearchSpace) -> Layout:
    return first_layout(Question(profile, space), conditions_of(profile, links))
