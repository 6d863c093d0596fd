"""Workers that each run the next blocks on the whole batch: which of these layouts may be chosen, and their neighbours.

A neighbour differs in one cut, width, worker, or in K. Families of such layouts import both functions as theirs.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np

from edge_agent.planning.cost import Conditions
from edge_agent.planning.families.question import Question
from edge_agent.planning.layout import Layout, stacked

SHIFTS = (-4, -2, -1, 1, 2, 4)
"""Blocks by which a cut is shifted."""


def permits(question: Question, layout: Layout) -> bool:
    """Tell whether a layout may be chosen, measured or not; none of another kind may."""
    names, space, workers = question.permitted, question.space, layout.workers
    places = [names.index(worker) for worker in workers if worker in names]
    if not layout.is_stacked or len(places) < len(workers) or places[0]:
        return False
    if len(places) == 1 < len(names) and not space.allow_edge_only:
        return False
    if space.cuts is not None and (layout.cuts != space.cuts or len(places) < len(names)):
        return False
    if space.widths is not None and layout.bits != space.widths:
        return False
    if layout.staleness not in question.choices_of_staleness or not set(layout.bits) <= set(space.bits):
        return False
    cuts, bits = (np.array(each, dtype=np.int64) for each in (layout.cuts, layout.bits))
    return bool(space.permits_bits(question.profile, cuts, bits).all())


def neighbours(question: Question, layout: Layout, _at: Conditions) -> Iterator[Layout]:
    """Yield the permitted neighbours of a layout; of one of another kind, none."""
    return (one for one in _shifted(question, layout) if permits(question, one))


def _shifted(question: Question, layout: Layout) -> Iterator[Layout]:
    profile, workers, cuts, bits = question.profile, layout.workers, layout.cuts, layout.bits
    if not layout.is_stacked:
        return
    for staleness in question.choices_of_staleness:
        yield replace(layout, staleness=staleness or 0)
    for place in range(len(cuts)):
        for shift in SHIFTS:
            shifted = (*cuts[:place], cuts[place] + shift, *cuts[place + 1 :])
            if all(first < stop for first, stop in pairwise((0, *shifted, len(profile)))):
                yield stacked(profile, shifted, layout.staleness, bits, workers)
        for width in question.space.bits:
            yield stacked(profile, cuts, layout.staleness, (*bits[:place], width, *bits[place + 1 :]), workers)
        fewer = (*workers[: place + 1], *workers[place + 2 :])  # the one before has its blocks
        rest = (*cuts[:place], *cuts[place + 1 :]), (*bits[:place], *bits[place + 1 :])
        yield stacked(profile, rest[0], layout.staleness, rest[1], fewer)
