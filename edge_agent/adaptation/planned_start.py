"""The first deployment of a run whose cut is left to the engine: the plan for the link as a probe finds it."""

import structlog

from edge_agent.adaptation.engine_inputs import adjust_profile, search_space
from edge_agent.adaptation.link_probe import probe_link
from edge_agent.experiment.building import Experiment
from shared.planning import Layout, Profile, Rates, first_deployment

_log = structlog.get_logger(__name__)


async def planned_start(experiment: Experiment, profile: Profile) -> Layout | None:
    """Plan the first layout; None if the configuration names a cut or a placement, or the probe finds no rates.

    Raises PlanError if nothing may be chosen.
    """
    config = experiment.config
    if config.deployment.cut is not None or config.placement.given:
        return None
    (name,) = experiment.trainers
    trainer = next(trainer for trainer in config.all_trainers if trainer.name == name)
    found = await probe_link(config, trainer)
    if found.uplink is None or found.downlink is None:
        _log.warning("the link could not be probed, so the run begins with half of the blocks here")
        return None
    usable = adjust_profile(profile, config.engine, experiment.deployment.downlink_codec)
    rates = Rates(found.uplink, found.downlink, found.round_trip_seconds or 0.0)
    planned = first_deployment(usable, rates, search_space(experiment, profile))
    _log.info(
        "beginning as planned",
        deployment=str(planned),
        uplink_bits_per_second=round(found.uplink),
        downlink_bits_per_second=round(found.downlink),
        round_trip_seconds=rates.round_trip_seconds,
    )
    return planned
