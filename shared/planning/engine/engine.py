"""The decision engine: it is told what was measured, and says when to change the deployment. It has no clock and no threads.

The planners say what is best for given rates; the engine adds what they leave out (paper 000, 4.4 and 4.5): rates are noisy,
the profile ages, a change costs, and the link may be back in a moment. Its rules:

- Deployments (candidates.py) are compared by the steps each would have done over the last minute (estimates.py).
- A change, with its way (transitions.py), must pay over the steps until the next event (horizon.py).
- The ledger (ledger.py) says what may be risked, and what is proven and therefore no risk: deployments, and experts that
  follow the link from one to another (experts.py).

A decision is a proposal until `note_deployed` answers it: with the proposed deployment, or with the old one when the change
failed. Until then the engine only listens.
"""

import math

import numpy as np

from shared.planning.cost import PlannedDeployment
from shared.planning.engine.candidates import Candidates
from shared.planning.engine.config import EngineConfig
from shared.planning.engine.decision import Decision
from shared.planning.engine.estimates import Estimates
from shared.planning.engine.experts import Experts
from shared.planning.engine.horizon import Horizon
from shared.planning.engine.ledger import PROFIT, Ledger
from shared.planning.engine.outcome import Outcome, Tally
from shared.planning.engine.transitions import Transitions
from shared.planning.measurements import Floats
from shared.planning.profile import Profile
from shared.planning.space import SearchSpace

FIRST_INTERVAL_SECONDS = 1.0
"""Taken for the time before the first observation."""


class Engine:
    """The decisions of one run, and what is believed and owed between two observations."""

    def __init__(
        self,
        profile: Profile,
        space: SearchSpace,
        deployment: PlannedDeployment,
        config: EngineConfig | None = None,
        total_steps: float = math.inf,
    ) -> None:
        """total_steps: after which the run ends, infinite where that is not known. PlanError when nothing can be chosen."""
        self.deployment = deployment
        self._profile = profile
        self._config = config or EngineConfig()
        self._total_steps = total_steps
        self._estimates = Estimates(
            self._config.window_seconds, self._config.limits.memory_seconds, profile.round_trip_seconds(*profile.names)
        )
        self._seconds: float | None = None
        self._changed_seconds = self._steady_seconds = -math.inf
        self._step = 0
        self._horizon = Horizon(self._config.margin, self._config.horizon_beta)
        self._is_running = False
        self._proposal: Decision | None = None
        self._is_for_good = False
        self._tally = Tally(math.nan)
        self.constrain(space)

    def constrain(self, space: SearchSpace) -> None:
        """Choose from another space from now on: how an operator pins the cut, the bits or K, and releases them.

        When today's deployment is not of the space, the next observation proposes the best that is, whatever it costs.
        """
        self._space = space
        self._candidates = Candidates(self._profile, space, self.deployment)
        self._current = self._candidates.index(self.deployment)
        self._estimates.consider(self._candidates.work, self._candidates.staleness, self._current)
        self._transitions = Transitions(self._profile, self._candidates, self._estimates)
        # The ledger's contenders are the candidates and, after them, the experts.
        self._experts = Experts(self._current, self._candidates.staleness, self._config.dwell_seconds)
        self._ledger = Ledger(self._config.limits, self._current, len(self._candidates) + len(self._experts))

    def observe(
        self,
        seconds: float,
        step: int,
        uplink: float,
        downlink: float,
        round_trip_seconds: float | None = None,
        edge_seconds: float | None = None,
        cloud_seconds: float | None = None,
    ) -> Decision | None:
        """What the link and the sides did since the last observation; a change to make, or None. Each change wants an answer.

        seconds: any clock that never goes back; call about once a second, also while nothing is sent.
        step: batches settled so far. uplink, downlink: mean rates since the last observation in bits per second, 0 when dead.
        round_trip_seconds: there and back, as measured since. edge_seconds, cloud_seconds: T1 (with encode) and T3 as measured
        with today's deployment. None leaves what was known.
        """
        if self._seconds is None:
            self._seconds, self._step = seconds - FIRST_INTERVAL_SECONDS, step
            self._horizon.begin(step)
        if step < self._step:  # the run went back to a checkpoint, and does these steps again
            self._step = step
            self._horizon.go_back(step)
        since, self._seconds = seconds - self._seconds, seconds
        done_steps, self._step = step - self._step, step
        if since <= 0.0:
            return None
        self._estimates.note_compute(edge_seconds, cloud_seconds, self._current)
        self._estimates.note_link(since, uplink, downlink, round_trip_seconds, self._current)
        self._count(since, done_steps)
        self._horizon.note(step, self._estimates.mean_speeds, self._candidates.allowed, self._current)
        if self._proposal is not None:
            return None
        self._is_for_good = False
        if not self._candidates.allowed[self._current]:
            self._leave()
        elif seconds - self._changed_seconds >= self._config.dwell_seconds:
            self._choose()
        return self._proposal

    @property
    def home(self) -> PlannedDeployment:
        """The deployment that losses are counted against: what the run began with, or what has proved to be better for good."""
        return self._candidates[self._ledger.home]

    def note_standstill(self, seconds: float) -> None:
        """Training stood still until now, as for an evaluation or a checkpoint: that time does not count."""
        if self._seconds is not None:
            self._seconds = seconds

    def note_deployed(self, seconds: float, deployment: PlannedDeployment) -> None:
        """Training goes on with `deployment`: the proposed one, the old one when the change was given up, or an operator's."""
        was, proposal = self.deployment, self._proposal
        self.deployment, self._proposal = deployment, None
        is_proposed = proposal is not None and deployment == proposal.deployment
        self._tally = Tally(proposal.seconds_per_step if proposal and is_proposed else math.nan)
        self._changed_seconds = seconds
        if deployment == was:
            self._ledger.forget()
            self._experts.begin(self._current)
        else:
            if deployment not in self._candidates:
                self.constrain(self._space)
            self._current = self._candidates.index(deployment)
            if self._is_for_good or not is_proposed or not self._candidates.allowed[self._ledger.home]:
                self._make_home()
        filling_seconds = 0.0
        if self._seconds is not None:  # an operator may be there before the first observation
            # Ample time until the pipeline runs evenly again.
            filling_seconds = 2.0 * float(self._estimates.phases(self._estimates.now).total()[self._current])
        self._steady_seconds = seconds + self._config.dwell_seconds + filling_seconds

    def outcome(self) -> Outcome | None:
        """What came of the last change, for the record of predictions; None until a step was done since."""
        return self._tally.outcome()

    def _remaining_steps(self) -> float:
        """Still to come; as many as were done where that is not known."""
        return max(0.0, self._total_steps - self._step) if math.isfinite(self._total_steps) else float(self._step)

    def _count(self, seconds: float, done_steps: int) -> None:
        """Compare what was expected of the last `seconds` with what was done in them; nothing counts before the first step."""
        self._is_running = self._is_running or done_steps > 0
        if not self._is_running:
            return
        estimates = self._estimates
        if self._proposal is None and self._seconds is not None and self._seconds >= self._steady_seconds:
            estimates.note_steps(seconds, done_steps, self._current)
        is_at_home = self._proposal is None and self._current == self._ledger.home
        played = self._experts.play(seconds, estimates.speeds, self._candidates.allowed, self._transitions.seconds_now)
        self._ledger.record(seconds, np.append(estimates.speeds, played), done_steps, is_at_home=is_at_home)
        self._tally.add(seconds, seconds * float(estimates.speeds[self._current]), done_steps)

    def _leave(self) -> None:
        """Propose the best deployment that is allowed; where only K is not, the best K with the rest as it is."""
        costs = self._costs(self._transitions.seconds(self._current, ...))
        nearest = self._candidates.allowed & self._candidates.same_but_staleness(self.deployment)
        self._is_for_good = True
        self._propose(int(np.argmin(np.where(nearest if nearest.any() else self._candidates.allowed, costs, np.inf))))

    def _choose(self) -> None:
        """Follow a proven expert, go to what is proven to pay, go home when that pays or must be, or try what may be risked."""
        home, current, speeds = self._ledger.home, self._current, self._estimates.speeds
        there, back = self._transitions.seconds(current, ...), self._transitions.seconds(..., home)
        # Steps of home are what the account counts. The way back is gone when the link has changed, and that is seen late.
        home_speed = max(float(speeds[home]), float(self._estimates.mean_speeds[home]))
        remaining_steps = self._remaining_steps()
        available = self._ledger.available_steps(remaining_steps)
        contenders = np.append(there, there[self._experts.places])
        gains, expert_gains = np.split(self._ledger.gains(contenders, remaining_steps), [len(there)])
        if self._follow(expert_gains, float(gains[self._candidates.allowed].max()), there, home_speed):
            return
        if gains[current] > 0.0:
            self._make_home()
            return
        proven = int(np.argmax(np.where(self._candidates.allowed & (there > 0.0), gains, 0.0)))
        if there[proven] > 0.0 and gains[proven] > 0.0:
            self._is_for_good = True
            # Half-way is worth nothing: to be given up only when the way takes all that is to be gained, its profit included.
            self._propose(proven, float(PROFIT * there[proven] + gains[proven] / home_speed))
            return
        back_steps = home_speed * (2.0 * back + (back > 0.0) * self._config.dwell_seconds)
        costs = self._costs(there)
        if speeds[home] > speeds[current]:
            usual_back_seconds = float(self._transitions.seconds(current, home, self._estimates.usual))
            is_short = available < back_steps[current] and self._ledger.regrets(current, usual_back_seconds)
            if is_short or costs[home] < costs[current]:
                self._propose(home)
                return
        if not self._horizon.is_behind:
            return
        fills_more = self._candidates.staleness > self.deployment.staleness
        only_fills = self._candidates.same_but_staleness(self.deployment) & fills_more
        is_paid = (available >= home_speed * there + back_steps) | (there == 0.0) | only_fills
        # A deployment that sends nothing does not suffer from a bad link. If the link died after the engine left it, the way
        # back would cost more than any account foresees; so from there it tries nothing and does only what is proven.
        sends = self._candidates.work.uplink_bits > 0.0
        is_paid &= (sends[home] & sends[current]) | ~sends
        is_paid[home] = True
        best = int(np.argmin(np.where(self._candidates.allowed & is_paid, costs, np.inf)))
        if costs[best] < (1.0 - self._config.margin) * costs[current]:
            # What is given up costs what was waited for: no more than the account can pay.
            self._propose(best, math.inf if best == home else available / home_speed)

    def _follow(self, expert_gains: Floats, best_gain: float, there_seconds: Floats, home_speed: float) -> bool:
        """Go where an expert is, if one is proven by more than may be risked and by more than any deployment; returns whether.

        An expert that has not moved for the time of proof is no longer followed: what it found is a deployment like others.
        """
        remaining_steps = self._remaining_steps()
        available = self._ledger.available_steps(remaining_steps)
        places = self._experts.places
        is_payable = (available >= home_speed * there_seconds[places]) | (places == self._ledger.home)
        leading = int(np.argmax(np.where(is_payable, expert_gains, 0.0)))
        least_gain = max(self._config.limits.loss_fraction * remaining_steps, best_gain)
        if not is_payable[leading] or expert_gains[leading] <= least_gain:
            return False
        target = int(places[leading])
        if target == self._current:
            return self._experts.stayed_seconds(leading) < self._config.limits.proof_seconds
        self._propose(target, math.inf if target == self._ledger.home else available / home_speed)
        return True

    def _make_home(self) -> None:
        """Call today's deployment home."""
        self._ledger.set_home(self._current)
        self._experts.begin(self._current)

    def _costs(self, there_seconds: Floats) -> Floats:
        """Seconds that the horizon would take with each candidate, the way there included (Eq. 15)."""
        horizon_steps = self._horizon.steps(self._step, self._total_steps)
        costs: Floats = horizon_steps / self._estimates.mean_speeds + there_seconds
        return costs

    def _propose(self, index: int, abandon_after_seconds: float = math.inf) -> None:
        estimates = self._estimates
        self._proposal = Decision(
            self._candidates[index],
            1.0 / float(estimates.mean_speeds[index]),
            1.0 / float(estimates.mean_speeds[self._current]),
            self._transitions.moving_seconds(self._current, index),
            abandon_after_seconds,
        )
