"""The knowledge of a run's candidates: what probes, the training stream and the engine say of each, put together."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from edge_agent.adaptation.candidates.probes import Known
from edge_agent.planning import Conditions, MeasuredLink, Profile, Rates
from edge_agent.planning.candidates import Candidate
from edge_agent.planning.engine.prospects import DEVICE, Today
from edge_agent.training.statistics import RecentMean, Statistics
from shared.client.link_measurement import LinkRates
from shared.placement import AGENT

MEASURED_LOOKS = 10
"""Looks, a second apart, over which times are averaged."""
LEAST_STEPS = 3
"""Steps of which the time says something."""
Believed = tuple[Profile, Conditions]
"""Times, links and factors of today's workers, as the engine has them."""


class CandidateKnowledge:
    """The knowledge of one run. Used on the event loop."""

    def __init__(
        self, names: Sequence[str], profile: Profile, statistics: Statistics, probed: Mapping[str, Known]
    ) -> None:
        """names: of the trainers. profile: of the device and one trainer. probed: what probes know, by name."""
        self._names, self._profile, self._statistics, self._probed = names, profile, statistics, probed
        self._work_seconds = RecentMean(MEASURED_LOOKS, LEAST_STEPS)

    def candidates(
        self, here: str, today: Today, cut: int, believed: Believed | None, stalled: Collection[str] = ()
    ) -> list[Candidate | None]:
        """Return what is known of each trainer; None for those that cannot be chosen now.

        here: today's trainer, or the device. cut: blocks on the device today. stalled: trainers that answer and do nothing.
        """
        return [
            None
            if name in stalled
            else self._here(name, today, cut, believed)
            if name == here
            else self._elsewhere(name, today.seconds)
            for name in self._names
        ]

    def _elsewhere(self, name: str, seconds: float) -> Candidate | None:
        known, rates = self._probed[name], self._rates(name)
        if rates is None or known.probed is None or known.left_out_until > seconds:
            return None
        answer = known.probed.answer
        return Candidate(name, rates, known.factor or 1.0, answer.busy, answer.sessions)

    def _here(self, name: str, today: Today, cut: int, believed: Believed | None) -> Candidate | None:
        """Return the same of today's trainer, where this run is one of the sessions and keeps it busy, too."""
        known, rates = self._probed[name], self._rates(name)
        if rates is None or (known.probed is None and not self._statistics.is_flowing):
            return None
        figures = self._statistics.workers.get(name)
        worked = None if figures is None else self._work_seconds.take(figures.compute)
        factor = known.factor or 1.0
        if believed is not None:
            factor = self.believed_factor(1, cut, believed)
        elif worked is not None:
            factor = worked / float(self._profile.workers[1].replayed[cut, len(self._profile)])
        if known.probed is None:
            return Candidate(name, rates, factor)
        own = worked / today.seconds_per_step if worked and today.seconds_per_step else 1.0
        answer = known.probed.answer
        return Candidate(name, rates, factor, max(0.0, answer.busy - own), max(0, answer.sessions - 1))

    def believed_factor(self, worker: int, cut: int, believed: Believed | None) -> float:
        """Return the ratio of the times of the device (0) or of today's trainer (1) to the profile's, by the engine."""
        if believed is None:
            return 1.0
        profile, at = believed
        run = (0, cut) if worker == DEVICE else (cut, len(self._profile))
        now, then = (each.workers[worker].replayed[run] for each in (profile, self._profile))
        ratio = float(now / then) if then > 0.0 and math.isfinite(now) else 1.0
        return ratio * float(at.factors[worker])

    def _rates(self, name: str) -> Rates | None:
        """Return the rates to a trainer: of its stream, of probes, or those of any other, as the device's link is one."""
        of_all = [self._probed[other].rates for other in self._names]
        of_all += [self.streamed(other) for other in self._names]
        whole = [rates for rates in of_all if rates.uplink is not None and rates.downlink is not None]
        fastest = max(whole, key=lambda rates: rates.uplink or 0.0, default=LinkRates())
        known = self._probed[name]
        found = self.streamed(name).merged_over(known.rates).merged_over(fastest)
        if found.uplink is None or found.downlink is None or not known.trips:
            return None
        return Rates(found.uplink, found.downlink, known.round_trip_seconds)

    def streamed(self, name: str) -> LinkRates:
        """Return the rates that the training stream to a trainer shows."""
        rates = self._statistics.link_rates
        return LinkRates(rates.get((AGENT, name)), rates.get((name, AGENT)))

    def profile_with(self, name: str) -> Profile:
        """Return the profile of the device and this trainer, as far as probes know it."""
        known, (device, trainer) = self._probed[name], self._profile.workers
        profile = replace(self._profile, workers=(device, trainer.slowed(known.factor or 1.0))).named((AGENT, name))
        rates = self._rates(name)
        if rates is None:
            return profile
        return profile.with_links({(AGENT, name): MeasuredLink(rates.uplink, rates.downlink, rates.round_trip_seconds)})
