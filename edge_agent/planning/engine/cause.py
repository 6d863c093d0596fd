"""The cause of a decision: of all links and workers, the one whose measured change explains it best.

Each is put, alone, from what was believed of it when today's layout began to what is believed now. The one that so changes the
step of today's layout or of the next one most is the cause. Decides nothing: an operator reads it.
"""

import math
from collections.abc import Collection, Iterator
from dataclasses import replace
from itertools import combinations

from edge_agent.planning.cost import Conditions
from edge_agent.planning.families.question import Question
from edge_agent.planning.layout import Layout
from edge_agent.planning.rates import LEAST_RATE, Rates
from edge_agent.planning.search import step_seconds


def cause_of(
    question: Question,
    layouts: tuple[Layout, Layout],
    before: Conditions,
    now: Conditions,
    least_effect: float,
    measured_again: Collection[str] = (),
) -> str:
    """Name what explains best that a layout is better than today's, in words that follow "because".

    layouts: today's and the better one. before: when today's began. least_effect: part of a step that a change has to change.
    measured_again: workers whose times in the question's profile are newer than `before`.
    """
    first_seconds = [step_seconds(question, layout, before) for layout in layouts]
    most, cause = least_effect, "it is better on links and workers as they are, though none has changed much"
    if measured_again:
        cause = f"the times of {' and '.join(sorted(measured_again))} were measured again"
    for words, alone in _changes(question.profile.names, before, now):
        for layout, seconds in zip(layouts, first_seconds, strict=True):
            effect = abs(math.log(step_seconds(question, layout, alone) / seconds))
            if effect > most:
                most, cause = effect, words
    return cause


def _changes(names: tuple[str, ...], before: Conditions, now: Conditions) -> Iterator[tuple[str, Conditions]]:
    """Yield each change in words, with the conditions under which nothing else has changed."""
    for near, far in combinations(range(len(names)), 2):
        rates, trips = before.rates.copy(), before.trips.copy()
        for direction in ((near, far), (far, near)):
            rates[direction], trips[direction] = now.rates[direction], now.trips[direction]
        was, link = (_shown(each.link(near, far)) for each in (before, now))
        words = f"the link from {names[near]} to {names[far]} has {link} (before: {was})"
        yield words, replace(before, rates=rates, trips=trips)
    for place, name in enumerate(names):
        factors = before.factors.copy()
        factors[place] = now.factors[place]
        words = f"{name} computes {factors[place] / before.factors[place]:.2g} times as long as before"
        yield words, replace(before, factors=factors)


def _shown(link: Rates) -> str:
    """Return a link in words."""
    if link.uplink < LEAST_RATE:
        return "not known"
    trip = f", {link.round_trip_seconds * 1e3:.1f} ms there and back" if link.round_trip_seconds else ""
    return f"{link.uplink / 1e6:.3g} Mbit/s up, {link.downlink / 1e6:.3g} down{trip}"
