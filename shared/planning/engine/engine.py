"""The decision engine: it gets measurements, and says when to change the deployment. It has no clock and no threads.

The planners find the best layout for given rates. The engine adds what they leave out (paper 000, 4.4 and 4.5): rates
are noisy, the profile ages, a change costs, and the link may be back in a moment. Its rules:

- Layouts (pool.py) are compared by the steps each would have done over the last minute (beliefs.py).
- A change, with its move (ways.py), must pay over the steps until the next event (horizon.py).
- The ledger (ledger.py) bounds the risk, and names what is proven and therefore no risk: layouts, and experts that
  follow the link from one to another (experts.py).

A decision is a proposal until `note_deployed` answers it: with the proposed deployment, or with the old one after a
failed change. Until then the engine only listens.
"""

import math
from collections.abc import Mapping

import numpy as np

from shared.planning.cost import conditions_of
from shared.planning.engine.beliefs import Beliefs
from shared.planning.engine.config import EngineConfig
from shared.planning.engine.decision import Decision, Observation, Reason
from shared.planning.engine.experts import Experts
from shared.planning.engine.horizon import Horizon
from shared.planning.engine.ledger import PROFIT, Ledger
from shared.planning.engine.outcome import Outcome, OutcomeCounter
from shared.planning.engine.pool import Pool, pool_of
from shared.planning.engine.ways import Ways
from shared.planning.layout import Layout
from shared.planning.measurements import Floats
from shared.planning.profile import Hop, Profile
from shared.planning.space import SearchSpace

FIRST_INTERVAL_SECONDS = 1.0
"""Length assumed for the time before the first observation."""


class Engine:
    """The decisions of one run, and its beliefs and debts between two observations."""

    def __init__(
        self,
        profile: Profile,
        space: SearchSpace,
        layout: Layout,
        config: EngineConfig | None = None,
        total_steps: float = math.inf,
    ) -> None:
        """total_steps: after which the run ends, infinite if unknown. PlanError when nothing can be chosen."""
        self.layout = layout
        self._profile = profile
        self._config = config or EngineConfig()
        self._total_steps = total_steps
        self._places = {name: place for place, name in enumerate(profile.names)}
        self._beliefs = Beliefs(self._config.window_seconds, self._config.limits.memory_seconds, conditions_of(profile))
        self._seconds: float | None = None
        self._changed_seconds = self._steady_seconds = -math.inf
        self._step = 0
        self._horizon = Horizon(self._config.margin, self._config.horizon_beta)
        self._is_running = False
        self._proposal: Decision | None = None
        self._is_for_good = False
        self._outcomes = OutcomeCounter(math.nan)
        self.constrain(space)

    def constrain(self, space: SearchSpace) -> None:
        """Choose from another space from now on: an operator so pins the cut, the bits or K, and releases them.

        If today's deployment is not in the space, the next observation proposes the best that is, whatever it costs.
        """
        self._space = space
        self._pool: Pool = pool_of(self._profile, space, self.layout)
        self._current = self._pool.index(self.layout)
        self._beliefs.consider(self._pool, self._current)
        self._ways = Ways(self._pool, self._beliefs)
        # The ledger's contenders are the layouts and, after them, the experts.
        self._experts = Experts(self._current, self._pool.staleness, self._config.dwell_seconds)
        self._ledger = Ledger(self._config.limits, self._current, len(self._pool) + len(self._experts))

    def observe(self, seen: Observation) -> Decision | None:
        """Take in an observation. Returns a change to make, or None. Each change needs an answer."""
        seconds, step = seen.seconds, seen.step
        if self._seconds is None:
            self._seconds, self._step = seconds - FIRST_INTERVAL_SECONDS, step
            self._horizon.begin(step)
        if step < self._step:  # The run went back to a checkpoint, and does these steps again.
            self._step = step
            self._horizon.go_back(step)
        since, self._seconds = seconds - self._seconds, seconds
        done_steps, self._step = step - self._step, step
        if since <= 0.0:
            return None
        work = {self._places[name]: taken for name, taken in seen.work.items() if taken is not None}
        self._beliefs.note_work(work, self._current)
        self._beliefs.note_links(since, self._directions(seen.rates), self._directions(seen.trips), self._current)
        self._count(since, done_steps)
        self._horizon.note(step, self._beliefs.mean_speeds, self._pool.allowed, self._current)
        if self._proposal is not None:
            return None
        self._is_for_good = False
        if not self._pool.allowed[self._current]:
            self._leave()
        elif seconds - self._changed_seconds >= self._config.dwell_seconds:
            self._choose()
        return self._proposal

    def _directions(self, by_name: Mapping[Hop, float | None]) -> dict[tuple[int, int], float]:
        places = self._places
        return {(places[near], places[far]): one for (near, far), one in by_name.items() if one is not None}

    @property
    def names(self) -> tuple[str, ...]:
        """Return the workers of the profile."""
        return self._profile.names

    @property
    def home(self) -> Layout:
        """Return the layout against which losses are counted: the first one, or one that has proved better for good."""
        return self._pool[self._ledger.home]

    def note_standstill(self, seconds: float) -> None:
        """Skip the time until now, in which training stood still, for example for an evaluation or a checkpoint."""
        if self._seconds is not None:
            self._seconds = seconds

    def note_deployed(self, seconds: float, layout: Layout) -> None:
        """Note that training continues with `layout`: the proposed one, the old one after a change was given up, or an
        operator's."""
        was, proposal = self.layout, self._proposal
        self.layout, self._proposal = layout, None
        is_proposed = proposal is not None and layout == proposal.layout
        self._outcomes = OutcomeCounter(proposal.seconds_per_step if proposal and is_proposed else math.nan)
        self._changed_seconds = seconds
        if layout == was:
            self._ledger.forget()
            self._experts.begin(self._current)
        else:
            if layout not in self._pool:
                self.constrain(self._space)
            self._current = self._pool.index(layout)
            if self._is_for_good or not is_proposed or not self._pool.allowed[self._ledger.home]:
                self._make_home()
        filling_seconds = 0.0
        if self._seconds is not None:  # An operator may act before the first observation.
            # Ample time until the pipeline runs evenly again.
            filling_seconds = 2.0 * float(self._pool.loads.at(self._beliefs.now).total[self._current])
        self._steady_seconds = seconds + self._config.dwell_seconds + filling_seconds

    def outcome(self) -> Outcome | None:
        """Return the outcome of the last change, for the record of predictions; None until a step was done since."""
        return self._outcomes.outcome()

    def _remaining_steps(self) -> float:
        """Return the steps still to come; as many as were done if that is unknown."""
        return max(0.0, self._total_steps - self._step) if math.isfinite(self._total_steps) else float(self._step)

    def _count(self, seconds: float, done_steps: int) -> None:
        """Compare the expected steps of the last `seconds` with those done. Nothing counts before the first step."""
        self._is_running = self._is_running or done_steps > 0
        if not self._is_running:
            return
        beliefs = self._beliefs
        if self._proposal is None and self._seconds is not None and self._seconds >= self._steady_seconds:
            beliefs.note_steps(seconds, done_steps, self._current)
        is_at_home = self._proposal is None and self._current == self._ledger.home
        played = self._experts.play(seconds, beliefs.speeds, self._pool.allowed, self._ways.there_now)
        self._ledger.record(seconds, np.append(beliefs.speeds, played), done_steps, is_at_home=is_at_home)
        self._outcomes.add(seconds, seconds * float(beliefs.speeds[self._current]), done_steps)

    def _leave(self) -> None:
        """Propose the best deployment that is allowed. If only K is not, propose the best K with the rest unchanged."""
        costs = self._costs(self._ways.there(self._current))
        nearest = self._pool.allowed & self._pool.same_but_staleness(self._current)
        self._is_for_good = True
        self._propose(int(np.argmin(np.where(nearest if nearest.any() else self._pool.allowed, costs, np.inf))))

    def _choose(self) -> None:
        """Follow a proven expert, go to a layout that is proven to pay, go home when that pays or is necessary, or try
        within the risk."""
        home, current, speeds = self._ledger.home, self._current, self._beliefs.speeds
        there, back = self._ways.there(current), self._ways.back(home)
        # The account counts steps of home. The return is lost if the link has changed, and that is noticed late.
        home_speed = max(float(speeds[home]), float(self._beliefs.mean_speeds[home]))
        remaining_steps = self._remaining_steps()
        available = self._ledger.available_steps(remaining_steps)
        contenders = np.append(there, there[self._experts.places])
        gains, expert_gains = np.split(self._ledger.gains(contenders, remaining_steps), [len(there)])
        if self._follow(expert_gains, float(gains[self._pool.allowed].max()), there, home_speed):
            return
        if gains[current] > 0.0:
            self._make_home()
            return
        proven = int(np.argmax(np.where(self._pool.allowed & (there > 0.0), gains, 0.0)))
        if there[proven] > 0.0 and gains[proven] > 0.0:
            self._is_for_good = True
            # An incomplete move has no value, so it is given up only when it takes all that it can gain, its profit
            # included.
            self._propose(proven, float(PROFIT * there[proven] + gains[proven] / home_speed))
            return
        back_steps = home_speed * (2.0 * back + (back > 0.0) * self._config.dwell_seconds)
        costs = self._costs(there)
        if speeds[home] > speeds[current]:
            usual_back_seconds = float(self._ways.there(current, self._beliefs.usual)[home])
            is_short = available < back_steps[current] and self._ledger.regrets(current, usual_back_seconds)
            if is_short or costs[home] < costs[current]:
                self._propose(home)
                return
        if not self._horizon.is_behind:
            return
        fills_more = self._pool.staleness > self.layout.staleness
        only_fills = self._pool.same_but_staleness(self._current) & fills_more
        is_paid = (available >= home_speed * there + back_steps) | (there == 0.0) | only_fills
        # A deployment that sends nothing does not suffer from a bad link. If the link died after the engine left it,
        # the return would cost more than any account foresees. So from there it tries nothing and does only what is
        # proven.
        sends = self._pool.loads.sends()
        is_paid &= (sends[home] & sends[current]) | ~sends
        is_paid[home] = True
        best = int(np.argmin(np.where(self._pool.allowed & is_paid, costs, np.inf)))
        if costs[best] < (1.0 - self._config.margin) * costs[current]:
            # A move that is given up costs its waiting time: no more than the account can pay.
            self._propose(best, math.inf if best == home else available / home_speed)

    def _follow(self, expert_gains: Floats, best_gain: float, there_seconds: Floats, home_speed: float) -> bool:
        """Go to an expert's place, if one is proven by more than may be risked and by more than any deployment. Returns
        whether it does.

        An expert that has not moved for the time of proof is no longer followed: its place is a deployment like others.
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
        """Return the seconds of the horizon with each candidate, the move included (Eq. 15)."""
        horizon_steps = self._horizon.steps(self._step, self._total_steps)
        costs: Floats = horizon_steps / self._beliefs.mean_speeds + there_seconds
        return costs

    def _propose(self, index: int, abandon_after_seconds: float = math.inf) -> None:
        beliefs = self._beliefs
        self._proposal = Decision(
            self._pool[index],
            1.0 / float(beliefs.mean_speeds[index]),
            1.0 / float(beliefs.mean_speeds[self._current]),
            self._ways.moving_seconds(self._current, index),
            abandon_after_seconds,
            Reason.LINK if self._pool.allowed[self._current] else Reason.PIN,
        )
