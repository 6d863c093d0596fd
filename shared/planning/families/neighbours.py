"""The neighbours of a layout: those that differ from it in one cut, width, worker, or in K."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

from shared.planning.families.question import Question
from shared.planning.layout import Layout, stacked

SHIFTS = (-4, -2, -1, 1, 2, 4)
"""Blocks by which a cut is shifted."""


def neighbours(question: Question, layout: Layout) -> Iterator[Layout]:
    """Yield the permitted neighbours of a layout of workers that each run the next blocks; of another, none."""
    yield from filter(question.permits, _shifted(question, layout))


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
