"""The rules of the engine: of n contenders, the one to go to now, if any. Pure functions of what is known.

A contender is a layout among the layouts of a pool, or a trainer with its best layout among trainers. The rules in their order:
the answer to a device that has changed, a proven expert, what is proven to pay, the way home, and a trial within the risk that
the account allows.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from edge_agent.planning.engine.config import EngineConfig
from edge_agent.planning.engine.decision import Reason
from edge_agent.planning.engine.experts import Experts
from edge_agent.planning.engine.ledger import PROFIT, Ledger
from edge_agent.planning.measurements import Bools, Floats


class ChosenContender(NamedTuple):
    """The contender to go to, by its row."""

    row: int
    abandon_after_seconds: float = math.inf
    """Time after which a move is given up; infinite if the blocks have to arrive."""
    reason: Reason = Reason.LINK
    is_for_good: bool = False
    """True if it is home from then on."""


@dataclass(frozen=True, eq=False, slots=True)
class Contenders:
    """The contenders at one moment. Columns have shape (n,)."""

    current: int
    """Today's row."""
    allowed: Bools
    """True for those that may be chosen."""
    speeds: Floats
    """Steps per second of each now."""
    mean_speeds: Floats
    """Steps per second of each over the last minute."""
    there: Floats
    """Seconds of the way to each from today's, until training is at full speed; 0 for today's."""
    back: Floats
    """Seconds of the way home from each."""
    usual_home_seconds: float
    """Seconds of the way home from today's under the conditions of the whole memory."""
    horizon_steps: float
    """Steps over which a change has to pay."""
    remaining_steps: float
    """Steps of the run that are still to come."""
    is_behind: bool
    """True if today's is worse than the best by the margin."""
    is_settled: bool
    """True if no worker seems to be changing."""
    answers_a_device: bool
    """True if a worker has become another device, and the answer needs no account."""
    only_fills: Bools
    """True for those that differ from today's in more batches in flight alone."""
    sends: Bools
    """True for those that use a link."""

    @property
    def costs(self) -> Floats:
        """Return the seconds of the horizon with each, the way there included (Eq. 15)."""
        costs: Floats = self.horizon_steps / self.mean_speeds + self.there
        return costs


def cheapest(costs: Floats, among: Bools) -> int:
    """Return the row of the least costs."""
    return int(np.argmin(np.where(among, costs, np.inf)))


def leave(each: Contenders, nearest: Bools) -> ChosenContender:
    """Choose the best that is allowed, whatever it costs. nearest: those that differ least from today's: one of them, if any is
    allowed."""
    nearest = each.allowed & nearest
    row = cheapest(each.costs, nearest if nearest.any() else each.allowed)
    return ChosenContender(row, reason=Reason.PIN, is_for_good=True)


def choose(
    each: Contenders, ledger: Ledger, config: EngineConfig, experts: Experts | None = None
) -> ChosenContender | None:
    """Choose the contender to go to; None to stay. Today's row as a choice means that it has proved itself, and is home now.

    ledger: of these contenders and, after them, of the experts.
    """
    current, home, speeds, there, costs = each.current, ledger.home, each.speeds, each.there, each.costs
    if each.answers_a_device and (answer := _answer(each, config, costs)) is not None:
        return answer
    # The account counts steps of home. The return is lost if the link has changed, and that is noticed late.
    home_speed = max(float(speeds[home]), float(each.mean_speeds[home]))
    available_seconds = ledger.available_steps(each.remaining_steps) / home_speed
    ways = there if experts is None else np.append(there, there[experts.places])
    gains, expert_gains = np.split(ledger.gains(ways, each.remaining_steps), [len(there)])
    if experts is not None:
        best_gain = float(gains[each.allowed].max())
        followed = _followed(each, ledger, config, experts, expert_gains, best_gain, available_seconds)
        if followed is not None:
            return None if followed.row == current else followed
    if gains[current] > 0.0:
        return ChosenContender(current)
    proven_gains = np.where(each.allowed & (there > 0.0), gains, 0.0)
    proven = int(np.argmax(proven_gains))
    if proven_gains[proven] > 0.0:
        # An incomplete move has no value, so it is given up only when it takes all that it can gain, its profit included.
        return ChosenContender(proven, float(PROFIT * there[proven] + gains[proven] / home_speed), is_for_good=True)
    back_seconds = 2.0 * each.back + (each.back > 0.0) * config.dwell_seconds
    if speeds[home] > speeds[current]:
        is_short = available_seconds < back_seconds[current] and ledger.regrets(current, each.usual_home_seconds)
        if is_short or costs[home] < costs[current]:
            return ChosenContender(home)
    if not each.is_behind or not each.is_settled:
        return None
    return _tried(each, home, config, costs, back_seconds, available_seconds)


def _answer(each: Contenders, config: EngineConfig, costs: Floats) -> ChosenContender | None:
    """Choose what is best for the devices as they are now, without the account.

    It has to be better on the links of this moment, too. It is given up when it takes all that it can gain.
    """
    now = each.horizon_steps / each.speeds + each.there
    least = 1.0 - config.margin
    is_better = (costs < least * costs[each.current]) & (now < least * now[each.current])
    best = cheapest(costs, each.allowed & is_better)
    if not is_better[best] or not each.allowed[best]:
        return None
    most_seconds = float(PROFIT * each.there[best] + costs[each.current] - costs[best])
    return ChosenContender(best, most_seconds, Reason.DEVICE, is_for_good=True)


def _followed(
    each: Contenders,
    ledger: Ledger,
    config: EngineConfig,
    experts: Experts,
    expert_gains: Floats,
    best_gain: float,
    available_seconds: float,
) -> ChosenContender | None:
    """Choose an expert's place, if one is proven by more than may be risked and by more than any contender.

    An expert that has not moved for the time of proof is no longer followed: its place is a contender like others.
    """
    places = experts.places
    is_payable = (available_seconds >= each.there[places]) | (places == ledger.home)
    leading = int(np.argmax(np.where(is_payable, expert_gains, 0.0)))
    least_gain = max(config.loss_fraction * each.remaining_steps, best_gain)
    if not is_payable[leading] or expert_gains[leading] <= least_gain:
        return None
    target = int(places[leading])
    if target == each.current and experts.stayed_seconds(leading) >= config.proof_seconds:
        return None
    return ChosenContender(target, math.inf if target == ledger.home else available_seconds)


def _tried(
    each: Contenders, home: int, config: EngineConfig, costs: Floats, back_seconds: Floats, available_seconds: float
) -> ChosenContender | None:
    """Choose what saves the margin over the horizon, if the account can pay the way there and back."""
    current, sends = each.current, each.sends
    is_paid = (available_seconds >= each.there + back_seconds) | (each.there == 0.0) | each.only_fills
    # A layout that sends nothing does not suffer from a bad link. If the link died after the engine left it, the return would
    # cost more than any account foresees. So from there it tries nothing and does only what is proven.
    is_paid &= (sends[home] & sends[current]) | ~sends
    is_paid[home] = True
    best = cheapest(costs, each.allowed & is_paid)
    if costs[best] >= (1.0 - config.margin) * costs[current]:
        return None
    # A move that is given up costs its waiting time: no more than the account can pay.
    return ChosenContender(best, math.inf if best == home else available_seconds)
