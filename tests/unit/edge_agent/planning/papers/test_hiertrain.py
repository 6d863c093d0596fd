"""The planner of paper 004: Eq. 12 as it is defined, and no division of fewer seconds than the one it finds."""

import numpy as np
import pytest

from benchmarks.tiers.linear_programme import every_division
from edge_agent.planning import Question, SearchSpace, conditions_of
from edge_agent.planning.families.tiers.bounds import Bounds
from edge_agent.planning.families.tiers.choices import Choices
from edge_agent.planning.families.tiers.columns import columns_of
from edge_agent.planning.papers.hiertrain import eq12_seconds, hiertrain
from edge_agent.planning.profile import parse_profile
from tests.support.planning.tiers import NAMES, tiers_document

BOTH = frozenset(NAMES[1:])


def setting(seed, blocks=5, batch_size=12, inputs_to=BOTH):
    document = tiers_document(blocks, batch_size, seed)
    for block in document["blocks"]:
        block["min_samples"] = 1
    profile = parse_profile(document, "tiers")
    question = Question(profile, SearchSpace((32,), 0, inputs_to=inputs_to))
    return document, Bounds(profile, conditions_of(profile), 0), Choices(question)


def eq12_by_hand(document, division):
    """Eq. 12 by its definition, for p = 0."""
    blocks, batch = len(document["blocks"]), document["batch_size"]
    o, s, l = division.original, division.short, division.long  # noqa: E741 - the paper's names
    ms, ml = division.short_blocks, division.long_blocks
    b = division.samples(batch)
    workers = {worker["name"]: worker["by_samples"] for worker in document["workers"]}
    rates = {}
    for link in document["links"]:
        near, far = link["between"]
        rates[near, far], rates[far, near] = link["uplink"], link["downlink"]

    def seconds(worker, way, first, stop, count):
        lines = workers[worker][way][first:stop]
        return sum(constant + slope * count for constant, slope in lines) if count else 0.0

    def over(size, *hop):
        return 0.0 if hop[0] == hop[1] else 8 * size / rates[hop]

    def inputs(worker, count):
        return over(count * document["sample_bytes"][0], NAMES[0], worker)

    def passed(way, to_o, with_inputs):
        given = inputs if with_inputs else lambda *_: 0.0
        ends = {
            role: over(b[role] * document["sample_bytes"][m], *((w, o) if to_o else (o, w)))
            for role, w, m in (("s", s, ms), ("l", l, ml))
        }
        first = max(
            given(o, b["o"]) + seconds(o, way, 0, ms, b["o"]),
            given(s, b["s"]) + seconds(s, way, 0, ms, b["s"]) + ends["s"],
            given(l, b["l"]) + seconds(l, way, 0, ms, b["l"]),
        )
        second = max(seconds(o, way, ms, ml, b["o"] + b["s"]), seconds(l, way, ms, ml, b["l"]) + ends["l"])
        return first + second + seconds(o, way, ml, blocks, batch)

    def exchange(worker, m):
        total = 0.0
        for block in range(m):
            on = [b["o"] if block < ms else b["o"] + b["s"], b["s"] if block < ms else 0, b["l"] if block < ml else 0]
            if sum(count > 0 for count in on) > 1:
                size = document["blocks"][block]["bytes"]
                total += over(size, worker, o) + over(size, o, worker)
        return total

    update = max(
        sum(workers[worker]["update"][:m])
        for worker, m in ((o, blocks), (s, ms if b["s"] else 0), (l, ml if b["l"] else 0))
    )
    return (
        passed("forward", to_o=True, with_inputs=True)
        + passed("backward", to_o=False, with_inputs=False)
        + update
        + max(exchange(s, ms if b["s"] else 0), exchange(l, ml if b["l"] else 0))
    )


@pytest.mark.parametrize("seed", range(3))
def test_the_seconds_are_those_of_the_equation(seed):
    document, by, choices = setting(seed, 3, 4)
    every = choices.listed(range(4), range(1, 5))
    every = every.take(np.flatnonzero(every.before == 0))
    seconds = eq12_seconds(by, every)
    for row in range(0, every.rows, 7):
        assert seconds[row] == pytest.approx(eq12_by_hand(document, every.division(row, NAMES)))


@pytest.mark.parametrize("inputs_to", [frozenset(), frozenset({"near"}), BOTH], ids=len)
@pytest.mark.parametrize("seed", range(4))
def test_no_division_has_fewer_seconds_in_phases(seed, inputs_to):
    _, by, choices = setting(seed, inputs_to=inputs_to)
    every = choices.listed(range(choices.first_cut, 6), range(1, 13))
    if inputs_to == BOTH:
        every = every.take(np.flatnonzero((every.before == 0) | (every.before == 5)))
    found, seconds, evaluated = hiertrain(by, choices)
    alone = every.take(np.flatnonzero(every.short_samples == 0))
    as_short = alone._replace(
        short=alone.long, long=alone.short, short_blocks=alone.long_blocks, short_samples=alone.long_samples
    )._replace(long_samples=alone.short_samples)
    assert seconds == pytest.approx(min(eq12_seconds(by, of).min() for of in (every, as_short)), rel=1e-12)
    assert float(eq12_seconds(by, found)[0]) == pytest.approx(seconds, rel=1e-12)
    assert evaluated > 0


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 20))])
def test_trying_integers_is_never_worse_than_a_linear_programme_with_rounding(seed):
    """The programme is solved for each order of roles and each m_s and m_l."""
    document, by, choices = setting(seed)
    _, seconds, _ = hiertrain(by, choices)
    for division in every_division(document):
        rounded_seconds = float(eq12_seconds(by, columns_of(division, NAMES))[0])
        assert seconds <= rounded_seconds * (1 + 1e-9), division


def test_a_deep_model_and_a_large_batch_take_few_evaluations():
    """All 6 orders x 595 cuts x 8,256 shares would be 29 million."""
    _, by, choices = setting(1, 34, 128)
    _, _, evaluated = hiertrain(by, choices)
    assert evaluated < 2_000_000
