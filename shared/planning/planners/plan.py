"""What a planner answers, and what it costs.

A planner is one file with a function like `Planner` in it and one line in registry.py. It knows nothing of time passing; when
to ask it and when to act on the answer is the engine's business.
"""

from dataclasses import dataclass
from typing import Protocol

from shared.errors import PlanError
from shared.planner_names import DEFAULT_HORIZON_STEPS
from shared.planning.cost import PlannedDeployment, StepWork, migration_seconds, pipeline_seconds
from shared.planning.measurements import Floats
from shared.planning.profile import Profile
from shared.planning.rates import Rates
from shared.planning.space import SearchSpace


@dataclass(frozen=True)
class Plan:
    """A planner's answer."""

    deployment: PlannedDeployment
    seconds_per_step: float
    """Eq. 12 over the horizon, divided by it; the migration is not in it."""
    phase_seconds: tuple[float, float, float, float]
    """T1, T2, T3, T4."""
    migration_seconds: float
    """Eq. 13 from today's cut; 0 where there is none."""
    evaluated: int
    """Deployments that this one was chosen from."""


class Planner(Protocol):
    """Chooses a deployment for a link."""

    def __call__(
        self,
        profile: Profile,
        rates: Rates,
        space: SearchSpace | None = None,
        horizon_steps: int = DEFAULT_HORIZON_STEPS,
        from_cut: int | None = None,
    ) -> Plan:
        """The deployment to use. PlanError where the profile and the space leave none.

        horizon_steps: how long it is expected to last. from_cut: today's cut; None where nothing is deployed yet.
        """


def plan_of(
    profile: Profile,
    rates: Rates,
    work: StepWork,
    staleness_range: range,
    horizon_steps: int,
    from_cut: int | None,
    evaluated: int,
) -> Plan:
    """The answer for the one row of `work`, with the least K that costs no more than any."""
    costs = [float(horizon_seconds(work, rates, staleness, horizon_steps)[0]) for staleness in staleness_range]
    index = costs.index(min(costs))
    phases = work.phases(rates, serial=staleness_range[index] == 0)
    cut = int(work.cuts[0])
    return Plan(
        PlannedDeployment(cut, staleness_range[index], int(work.bits[0])),
        costs[index] / horizon_steps,
        (float(phases.edge[0]), float(phases.uplink[0]), float(phases.cloud[0]), float(phases.downlink[0])),
        0.0 if from_cut is None else float(migration_seconds(profile, from_cut, cut, rates)),
        evaluated,
    )


def horizon_seconds(work: StepWork, rates: Rates, staleness: int, horizon_steps: int) -> Floats:
    """Eq. 12 for every row of `work`, shape (n,)."""
    return pipeline_seconds(work.phases(rates, serial=staleness == 0), staleness, horizon_steps)


def check_start(profile: Profile, horizon_steps: int, from_cut: int | None) -> None:
    """Refuse a horizon of no step, and a cut that the model does not have. Raises PlanError."""
    if horizon_steps < 1:
        raise PlanError(f"the horizon is {horizon_steps} steps; it must be 1 or more")
    if from_cut is not None and not 1 <= from_cut <= len(profile):
        raise PlanError(
            f"the cut to start from is {from_cut}; with {len(profile)} blocks it must be from 1 to {len(profile)}"
        )
