"""The rules of the engine: of the layouts that are weighed, the one to go to now, if any. Pure functions of what is known.

In their order: the answer to a device that has changed, a proven expert, what is proven to pay, the way home, and a trial
within the risk that the account allows.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from edge_agent.planning.engine.beliefs import Beliefs
from edge_agent.planning.engine.config import EngineConfig
from edge_agent.planning.engine.decision import Decision, Reason
from edge_agent.planning.engine.experts import Experts
from edge_agent.planning.engine.ledger import PROFIT, Ledger
from edge_agent.planning.engine.moves import Moves
from edge_agent.planning.engine.pool import Pool
from edge_agent.planning.measurements import Bools, Floats


class Choice(NamedTuple):
    """The layout to go to, by its row."""

    row: int
    abandon_after_seconds: float = math.inf
    """Time after which a move is given up; infinite if the blocks have to arrive."""
    reason: Reason = Reason.LINK
    is_for_good: bool = False
    """True if it is home from then on."""


@dataclass(slots=True)
class Contest:
    """The layouts that are weighed, and all that is known of them."""

    pool: Pool
    beliefs: Beliefs
    experts: Experts
    ledger: Ledger
    """Its contenders are the layouts and, after them, the experts."""
    current: int
    """Today's row."""

    @property
    def moves(self) -> Moves:
        """Return the moves between them."""
        return Moves(self.pool, self.beliefs)

    @property
    def home(self) -> int:
        """Return the row against which losses are counted."""
        return self.ledger.home

    def make_home(self) -> None:
        """Call today's layout home."""
        self.ledger.set_home(self.current)
        self.experts.begin(self.current)

    def decision(self, choice: Choice) -> Decision:
        """Return a choice as the engine proposes it."""
        there, here = self.beliefs.mean_speeds[[choice.row, self.current]].tolist()
        moving_seconds = self.moves.moving_seconds(self.current, choice.row)
        layout = self.pool[choice.row]
        return Decision(layout, 1.0 / there, 1.0 / here, moving_seconds, choice.abandon_after_seconds, choice.reason)

    def cheapest(self, costs: Floats, among: Bools) -> int:
        """Return the row of the least costs."""
        return int(np.argmin(np.where(among, costs, np.inf)))


@dataclass(frozen=True, slots=True)
class Moment:
    """The run at the moment of a choice."""

    config: EngineConfig
    horizon_steps: float
    remaining_steps: float
    is_behind: bool
    """True if today's layout is worse than the best by the margin."""
    answers_a_device: bool
    """True if a worker has become another device, and the answer needs no account."""


def leave(contest: Contest, moment: Moment) -> Choice:
    """Choose the best layout that is allowed, whatever it costs. If only K is not allowed, the rest stays."""
    costs = _costs(contest, moment, contest.moves.there(contest.current))
    nearest = contest.pool.allowed & contest.pool.same_but_staleness(contest.current)
    row = contest.cheapest(costs, nearest if nearest.any() else contest.pool.allowed)
    return Choice(row, reason=Reason.PIN, is_for_good=True)


def choose(contest: Contest, moment: Moment) -> Choice | None:
    """Choose the layout to go to; None to stay. Today's row as a choice means that it has proved itself, and is home now."""
    ledger, current, home = contest.ledger, contest.current, contest.home
    speeds, remaining_steps = contest.beliefs.speeds, moment.remaining_steps
    there, back = contest.moves.there(current), contest.moves.back(home)
    costs = _costs(contest, moment, there)
    if moment.answers_a_device and (answer := _answer(contest, moment, there, costs)) is not None:
        return answer
    # The account counts steps of home. The return is lost if the link has changed, and that is noticed late.
    home_speed = max(float(speeds[home]), float(contest.beliefs.mean_speeds[home]))
    available_seconds = ledger.available_steps(remaining_steps) / home_speed
    contenders = np.append(there, there[contest.experts.places])
    gains, expert_gains = np.split(ledger.gains(contenders, remaining_steps), [len(there)])
    best_gain = float(gains[contest.pool.allowed].max())
    followed = _followed(contest, moment, expert_gains, best_gain, there, available_seconds)
    if followed is not None:
        return None if followed.row == current else followed
    if gains[current] > 0.0:
        return Choice(current)
    proven = int(np.argmax(np.where(contest.pool.allowed & (there > 0.0), gains, 0.0)))
    if there[proven] > 0.0 and gains[proven] > 0.0:
        # An incomplete move has no value, so it is given up only when it takes all that it can gain, its profit included.
        return Choice(proven, float(PROFIT * there[proven] + gains[proven] / home_speed), is_for_good=True)
    back_seconds = 2.0 * back + (back > 0.0) * moment.config.dwell_seconds
    if speeds[home] > speeds[current]:
        usual_back_seconds = float(contest.moves.there(current, contest.beliefs.usual)[home])
        is_short = available_seconds < back_seconds[current] and ledger.regrets(current, usual_back_seconds)
        if is_short or costs[home] < costs[current]:
            return Choice(home)
    if not moment.is_behind or not contest.beliefs.devices.is_settled(1.0 / float(speeds[current])):
        return None
    return _tried(contest, moment, costs, there, back_seconds, available_seconds)


def _costs(contest: Contest, moment: Moment, there_seconds: Floats) -> Floats:
    """Return the seconds of the horizon with each layout, the move included (Eq. 15)."""
    costs: Floats = moment.horizon_steps / contest.beliefs.mean_speeds + there_seconds
    return costs


def _answer(contest: Contest, moment: Moment, there_seconds: Floats, costs: Floats) -> Choice | None:
    """Choose what is best for the devices as they are now, without the account.

    It has to be better on the links of this moment, too. It is given up when it takes all that it can gain.
    """
    now = moment.horizon_steps / contest.beliefs.speeds + there_seconds
    least = 1.0 - moment.config.margin
    is_better = (costs < least * costs[contest.current]) & (now < least * now[contest.current])
    best = contest.cheapest(costs, contest.pool.allowed & is_better)
    if not is_better[best] or not contest.pool.allowed[best]:
        return None
    most_seconds = float(PROFIT * there_seconds[best] + costs[contest.current] - costs[best])
    return Choice(best, most_seconds, Reason.DEVICE, is_for_good=True)


def _followed(
    contest: Contest,
    moment: Moment,
    expert_gains: Floats,
    best_gain: float,
    there_seconds: Floats,
    available_seconds: float,
) -> Choice | None:
    """Choose an expert's place, if one is proven by more than may be risked and by more than any layout.

    An expert that has not moved for the time of proof is no longer followed: its place is a layout like others.
    """
    places, limits = contest.experts.places, moment.config.limits
    is_payable = (available_seconds >= there_seconds[places]) | (places == contest.home)
    leading = int(np.argmax(np.where(is_payable, expert_gains, 0.0)))
    least_gain = max(limits.loss_fraction * moment.remaining_steps, best_gain)
    if not is_payable[leading] or expert_gains[leading] <= least_gain:
        return None
    target = int(places[leading])
    if target == contest.current and contest.experts.stayed_seconds(leading) >= limits.proof_seconds:
        return None
    return Choice(target, math.inf if target == contest.home else available_seconds)


def _tried(
    contest: Contest,
    moment: Moment,
    costs: Floats,
    there_seconds: Floats,
    back_seconds: Floats,
    available_seconds: float,
) -> Choice | None:
    """Choose what saves the margin over the horizon, if the account can pay the way there and back."""
    pool, current, home = contest.pool, contest.current, contest.home
    only_fills = pool.same_but_staleness(current) & (pool.staleness > pool.staleness[current])
    is_paid = (available_seconds >= there_seconds + back_seconds) | (there_seconds == 0.0) | only_fills
    # A layout that sends nothing does not suffer from a bad link. If the link died after the engine left it, the return would
    # cost more than any account foresees. So from there it tries nothing and does only what is proven.
    sends = pool.loads.sends()
    is_paid &= (sends[home] & sends[current]) | ~sends
    is_paid[home] = True
    best = contest.cheapest(costs, pool.allowed & is_paid)
    if costs[best] >= (1.0 - moment.config.margin) * costs[current]:
        return None
    # A move that is given up costs its waiting time: no more than the account can pay.
    return Choice(best, math.inf if best == home else available_seconds)
