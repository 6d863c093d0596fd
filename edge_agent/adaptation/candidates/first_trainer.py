"""The trainer with which a run among candidates begins: the first that answers, or the fastest by what probes show."""

import asyncio
from functools import partial

import structlog

from edge_agent.adaptation.candidates.byte_budget import ByteBudget
from edge_agent.adaptation.candidates.probed import Probed, check_would, measured_rates, probe
from edge_agent.adaptation.engine_inputs import question_of
from edge_agent.config import EdgeConfig
from edge_agent.experiment.experiment import Experiment
from edge_agent.planning import Profile, Rates
from edge_agent.planning.candidates import Candidate, ranked_candidates
from shared.client.config import TrainerAddressConfig
from shared.client.credentials import trainer_access
from shared.client.retry import Retry
from shared.client.trainer import TrainerClient
from shared.errors import IsthmusError, UnreachableError
from shared.placement import AGENT

_log = structlog.get_logger(__name__)
MOMENT_SECONDS = 1.0
"""Time that a candidate has after the first one of all has answered. A trainer in reach answers in less."""
RATED = 3
"""Candidates whose rates are measured: the nearest."""


async def first_trainer(config: EdgeConfig) -> str:
    """Return the name of the first candidate that would open a session now. All are asked at once.

    Raises UnreachableError if none can be reached, and otherwise the IsthmusError of one that would not.
    """
    return next(iter(await _willing(config, is_ordered=True)))


async def begin_with_fastest(experiment: Experiment, profile: Profile) -> None:
    """Begin with the trainer and the layout that are the fastest by probes, or with all blocks on the device where that is.

    A cut that the configuration names stays. Raises as `first_trainer`, and PlanError if nothing may be chosen.
    """
    config = experiment.config
    willing = await _willing(config, is_ordered=False)
    nearest = sorted(willing, key=lambda name: willing[name].round_trip_seconds)[:RATED]
    budget = ByteBudget(config.choice.probe_bytes_per_minute)
    candidates = list[Candidate]()
    for name in nearest:
        trainer = next(one for one in config.all_trainers if one.name == name)
        share = budget.left(0.0) / (len(nearest) - len(candidates))
        found, carried = await measured_rates(config, trainer, trainer_access(trainer, config.tls), share)
        budget.spend(carried)
        answer = willing[name].answer
        if found.uplink is not None and found.downlink is not None:
            rates = Rates(found.uplink, found.downlink, willing[name].round_trip_seconds)
            candidates.append(Candidate(name, rates, busy=answer.busy, sessions=answer.sessions))
    experiment.begin_with(candidates[0].name if candidates else nearest[0])
    if not candidates:
        _log.warning("no link to a trainer could be measured, so the run begins with the nearest")
        return
    question = question_of(experiment, profile)
    ranked = {
        plan.layout.workers[-1]: plan for plan in await asyncio.to_thread(ranked_candidates, question, candidates)
    }
    _log.info("beginning as planned", ranking={name: round(one.seconds_per_step, 4) for name, one in ranked.items()})
    if config.deployment.cut is not None:
        experiment.begin_with(next(name for name in ranked if name != AGENT))
        return
    name, best = next(iter(ranked.items()))
    if name != AGENT:
        experiment.begin_with(name)
    experiment.begin_at(experiment.laid_out(best.layout, experiment.placement))


async def _willing(config: EdgeConfig, *, is_ordered: bool) -> dict[str, Probed]:
    """Return the answers of the candidates that would open a session now, in their order.

    is_ordered: only the first of them counts, so nobody waits for one after it. Raises as `first_trainer`.
    """
    trainers = config.all_trainers
    asked = [asyncio.create_task(_ask(config, trainer)) for trainer in trainers]
    try:
        waiting, would = set(asked), list[asyncio.Task[Probed]]()
        while waiting and not would:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            would = [asking for asking in done if asking.exception() is None]
        late = asked[: min(map(asked.index, would), default=0)] if is_ordered else list(waiting)
        if would and late:
            await asyncio.wait(late, timeout=MOMENT_SECONDS)
        failures, found = dict[str, IsthmusError](), dict[str, Probed]()
        for trainer, asking in zip(trainers, asked, strict=True):
            if not asking.done():
                failures[trainer.name] = UnreachableError("it has not answered yet")
            elif isinstance(failure := asking.exception(), IsthmusError):
                failures[trainer.name] = failure
            else:
                found[trainer.name] = asking.result()
                if is_ordered:
                    break
    finally:
        for asking in asked:
            asking.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
    if found:
        for name, reason in failures.items():
            _log.warning("a candidate is left out at the beginning", trainer=name, reason=str(reason))
        return found
    for failure in failures.values():
        if not isinstance(failure, UnreachableError):
            raise failure
    why = "; ".join(f"{name}: {failure}" for name, failure in failures.items())
    raise UnreachableError(f"none of the trainers can be reached: {why}")


async def _ask(config: EdgeConfig, trainer: TrainerAddressConfig) -> Probed:
    """Wait until a trainer answers, also where it is lost between. Raises the IsthmusError with which it would not open a
    session."""
    async with TrainerClient(trainer, config.link, access=trainer_access(trainer, config.tls)) as client:
        ask = partial(Retry(trainer.connect_timeout_seconds).run, partial(probe, client, config.model.factory))
        await ask()  # the next one has nothing of the connection's beginning
        found = await ask()
    check_would(found, trainer.name, config.model.factory)
    return found
