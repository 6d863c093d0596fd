"""Planners: from a profile, a link and today's cut to the deployment to use. Pure functions.

`greedy` is the paper's search (paper 000, Alg. 2), the others are what it is compared with. None knows of time passing;
when to ask and when to act on the answer is the engine's business (engine.py). A new planner is a function here or in a
file of its own, and its line in `PLANNERS`: then `plan`, `simulate` and a run's `planner` have it.
"""

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from shared.errors import PlanError
from shared.planning.cost import (
    Deployment,
    Floats,
    Rates,
    Work,
    migration_seconds,
    pipeline_seconds,
    work_of,
)
from shared.planning.profile import FLOAT32_BITS, Profile, is_bit_width

DEFAULT_HORIZON_STEPS = 100
"""Steps that a deployment is expected to last where nothing is known of the link's past."""

DEFAULT_BITS = (2, 4, 8, 32)


@dataclass(frozen=True)
class SearchSpace:
    """What a planner may choose from. A value that is given is taken as it is, also past what the calibration found."""

    bits: tuple[int, ...] = DEFAULT_BITS
    """Widths to consider; the profile's min_bits still bounds them from below at each cut."""
    staleness: int | None = None
    """K; None searches 0..max_staleness of the profile."""
    cut: int | None = None
    """The only cut allowed; None allows all."""
    allow_edge_only: bool = True
    """Whether all blocks may be on the edge, where the profile has measured that."""

    def staleness_range(self, profile: Profile) -> range:
        """All values of K that may be chosen."""
        return range(profile.max_staleness + 1) if self.staleness is None else range(self.staleness, self.staleness + 1)

    def best_staleness(self, profile: Profile) -> tuple[int, ...]:
        """The values of K that can be the fastest: the largest, and K = 0, which spares the replay."""
        among = self.staleness_range(profile)
        return (among[-1], among[0]) if among[0] < among[-1] else (among[-1],)


@dataclass(frozen=True)
class Plan:
    """A planner's answer."""

    deployment: Deployment
    seconds_per_step: float
    """Eq. 12 over the horizon, divided by it; the migration is not in it."""
    phase_seconds: tuple[float, float, float, float]
    """T1, T2, T3, T4."""
    migration_seconds: float
    """Eq. 13 from today's cut; 0 where there is none."""
    evaluated: int
    """Deployments that this one was chosen from."""


def candidates(profile: Profile, space: SearchSpace) -> Work:
    """Every (cut, bits) of the space that was measured and keeps within min_bits, by cut and then from many bits to few.

    Edge-only has the largest width alone, for a smaller one would spare nothing there. The data stays on the edge, so a cut
    is at least 1. PlanError when the space is malformed or nothing is left of it.
    """
    _check_space(profile, space)
    cuts = np.arange(1, len(profile) + 1 if space.allow_edge_only else len(profile))
    widths = np.array(sorted(set(space.bits), reverse=True))
    work = work_of(profile, np.repeat(cuts, len(widths)), np.tile(widths, len(cuts)))
    edge_only = work.cuts == len(profile)
    allowed = work.measured() & (~edge_only | (work.bits == widths[0]))
    if profile.min_bits is not None:
        allowed &= (work.bits >= np.array(profile.min_bits, dtype=np.float64)[work.cuts]) | edge_only
    if space.cut is not None:
        allowed &= work.cuts == space.cut
    if not allowed.any():
        which = f"cut {space.cut}" if space.cut is not None else "any cut"
        raise PlanError(
            f"the profile leaves no deployment to choose at {which} with {', '.join(map(str, sorted(space.bits)))} bits; "
            "allow more bit widths, another cut or edge-only, or measure what the profile has as null"
        )
    return work.take(allowed)


def greedy(
    profile: Profile,
    rates: Rates,
    space: SearchSpace | None = None,
    horizon_steps: int = DEFAULT_HORIZON_STEPS,
    from_cut: int | None = None,
) -> Plan:
    """The deployment of least Eq. 12 plus migration (paper 000, Alg. 2 and Eq. 15), equal to trying every one.

    from_cut: today's cut; None when nothing is deployed yet, and then nothing is moved.
    Of equals: today's cut, then the smallest cut, then the most bits, then the least staleness.
    """
    space = space or SearchSpace()
    _check_start(profile, horizon_steps, from_cut)
    work = candidates(profile, space)
    migrations = (
        np.zeros(len(work.cuts)) if from_cut is None else migration_seconds(profile, from_cut, work.cuts, rates)
    )
    # Eq. 12 never rises with K, so the largest K has the least cost, or K = 0, which spares the replay; the smallest K of
    # that cost is taken afterwards.
    staleness_range = space.staleness_range(profile)
    costs = migrations + np.min(
        [_seconds(work, rates, staleness, horizon_steps) for staleness in {staleness_range[0], staleness_range[-1]}],
        axis=0,
    )
    ties = np.flatnonzero(costs == costs.min())
    chosen = next((i for i in ties if work.cuts[i] == from_cut), ties[0])
    return _plan(
        profile, rates, work.take([chosen]), staleness_range, horizon_steps, from_cut, len(costs) * len(staleness_range)
    )


def first_deployment(profile: Profile, rates: Rates, space: SearchSpace) -> Deployment:
    """What a run begins with for the engine to go on from: the greedy plan, with one of the K that the engine weighs."""
    planned, choices = greedy(profile, rates, space).deployment, space.best_staleness(profile)
    return planned if planned.staleness in choices else replace(planned, staleness=choices[0])


def jointdnn(
    profile: Profile,
    rates: Rates,
    space: SearchSpace | None = None,
    horizon_steps: int = DEFAULT_HORIZON_STEPS,
    from_cut: int | None = None,
) -> Plan:
    """The baseline of one cut chosen for a serial run in float32: the cut of least T_sum, K = 0 (paper 000, 6.1).

    It knows no migration, so `from_cut` only fills in what moving there would take. Of the space it keeps to
    `allow_edge_only` alone. Of equals, the smallest cut.
    """
    _check_start(profile, horizon_steps, from_cut)
    allow_edge_only = space is None or space.allow_edge_only
    work = candidates(profile, SearchSpace((FLOAT32_BITS,), allow_edge_only=allow_edge_only))
    chosen = np.argmin(work.phases(rates, serial=True).total())
    return _plan(profile, rates, work.take([chosen]), range(1), horizon_steps, from_cut, len(work.cuts))


def fixed(
    profile: Profile,
    rates: Rates,
    deployment: Deployment,
    horizon_steps: int = DEFAULT_HORIZON_STEPS,
    from_cut: int | None = None,
) -> Plan:
    """What one deployment costs. PlanError when it is out of range, not measured, or below the profile's min_bits."""
    space = SearchSpace((deployment.bits,), deployment.staleness, deployment.cut, allow_edge_only=True)
    return greedy(profile, rates, space, horizon_steps, from_cut)


def edge_only(
    profile: Profile,
    rates: Rates,
    space: SearchSpace | None = None,  # noqa: ARG001 - there is nothing to choose
    horizon_steps: int = DEFAULT_HORIZON_STEPS,
    from_cut: int | None = None,
) -> Plan:
    """What training on the edge alone costs."""
    return fixed(profile, rates, Deployment(len(profile), 0, FLOAT32_BITS), horizon_steps, from_cut)


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


GREEDY, EDGE_ONLY, FIXED = "greedy", "edge-only", "fixed"
PLANNERS: dict[str, Planner] = {
    GREEDY: greedy,
    "jointdnn": jointdnn,
    EDGE_ONLY: edge_only,
}
"""The planners by name. A run follows `greedy` as the link changes; what another planner chooses is held. `FIXED` stands beside
them where the deployment is given rather than chosen."""


def _plan(
    profile: Profile,
    rates: Rates,
    work: Work,
    staleness_range: range,
    horizon_steps: int,
    from_cut: int | None,
    evaluated: int,
) -> Plan:
    """The answer for the one row of `work`, with the least K that costs no more than any."""
    costs = [float(_seconds(work, rates, staleness, horizon_steps)[0]) for staleness in staleness_range]
    index = costs.index(min(costs))
    phases = work.phases(rates, serial=staleness_range[index] == 0)
    cut = int(work.cuts[0])
    return Plan(
        Deployment(cut, staleness_range[index], int(work.bits[0])),
        costs[index] / horizon_steps,
        (float(phases.edge[0]), float(phases.uplink[0]), float(phases.cloud[0]), float(phases.downlink[0])),
        0.0 if from_cut is None else float(migration_seconds(profile, from_cut, cut, rates)),
        evaluated,
    )


def _seconds(work: Work, rates: Rates, staleness: int, horizon_steps: int) -> Floats:
    """Eq. 12 for every row of `work`, shape (n,)."""
    return pipeline_seconds(work.phases(rates, serial=staleness == 0), staleness, horizon_steps)


def _check_space(profile: Profile, space: SearchSpace) -> None:
    most = len(profile) if space.allow_edge_only else len(profile) - 1
    if space.cut is not None and not 1 <= space.cut <= most:
        edge_only = "" if space.allow_edge_only else " (edge-only is not allowed here)"
        raise PlanError(f"the cut is {space.cut}; with {len(profile)} blocks it must be from 1 to {most}{edge_only}")
    if space.staleness is not None and space.staleness < 0:
        raise PlanError(f"the staleness is {space.staleness}; it must be 0 or more")
    if not space.bits or not all(map(is_bit_width, space.bits)):
        asked = ", ".join(map(str, space.bits)) or "none"
        raise PlanError(f"the bit widths are {asked}; each must be an integer of 1 to {FLOAT32_BITS}")


def _check_start(profile: Profile, horizon_steps: int, from_cut: int | None) -> None:
    if horizon_steps < 1:
        raise PlanError(f"the horizon is {horizon_steps} steps; it must be 1 or more")
    if from_cut is not None and not 1 <= from_cut <= len(profile):
        raise PlanError(
            f"the cut to start from is {from_cut}; with {len(profile)} blocks it must be from 1 to {len(profile)}"
        )
