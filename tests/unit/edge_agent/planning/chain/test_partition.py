"""The partition of a chain, compared with trying all, and both sides of each bound that decides it."""

import itertools
from dataclasses import astuple, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.planner_names import EXACTNESS_MARGIN
from edge_agent.planning import (
    Layout,
    MeasuredLink,
    MessageSeconds,
    Profile,
    Question,
    Rates,
    SearchSpace,
    WorkerProfile,
    best_order,
    conditions_of,
    greedy,
    loads_of,
    most_exact,
)
from edge_agent.planning.profile import parse_profile
from shared.errors import PlanError
from tests.support.planning.cases import asked, profiles, rates
from tests.support.planning.chain_runs import plan_chain
from tests.support.planning.chains import along, best_by_trying, chain_document

STALENESS = (None, 0, 1, 2, 5)
WIDTHS = ((2, 4, 32), (2, 4, 8, 32), (32,), (4,), (8, 16))


def check(document: dict, bits: tuple[int, ...], staleness: int | None) -> None:
    chain, expected = parse_profile(document, "chain"), best_by_trying(document, bits, staleness)
    if expected is None:
        with pytest.raises(PlanError, match="no partition of the"):
            plan_chain(chain, bits, staleness)
        return
    planned = plan_chain(chain, bits, staleness)
    layout = planned.layout
    assert (layout.workers, layout.cuts, layout.bits) == expected[1:]
    assert planned.seconds_per_step == pytest.approx(expected[0], rel=1e-11)


@pytest.mark.first_case
@pytest.mark.parametrize("staleness", STALENESS)
@pytest.mark.parametrize("stages", range(1, 5))
def test_it_equals_trying_everything_for_every_length(stages, staleness):
    for blocks in range(stages, 13):
        for ties in (False, True):
            document = chain_document(blocks, stages, seed=blocks, ties=ties)
            check(document, WIDTHS[blocks % 2], staleness)


@given(st.data())
def test_it_equals_trying_everything(data):
    blocks = data.draw(st.integers(1, 9))
    document = chain_document(
        blocks,
        data.draw(st.integers(1, min(4, blocks))),
        data.draw(st.integers(0, 10**6)),
        holes=data.draw(st.sampled_from((0.0, 0.3, 0.8))),
        ties=data.draw(st.booleans()),
    )
    if data.draw(st.booleans()):
        document["encode"] = None
    check(document, data.draw(st.sampled_from(WIDTHS)), data.draw(st.sampled_from(STALENESS)))


@given(st.integers(1, 6), st.integers(1, 3), st.integers(0, 10**6), st.sampled_from(WIDTHS), st.sampled_from(STALENESS))
def test_the_narrowest_link_has_as_many_bits_as_any_partition_within_the_margin(extra, links, seed, bits, staleness):
    document = chain_document(links + extra, links + 1, seed, ties=seed % 2 == 0)
    chain = parse_profile(document, "chain")
    best = best_by_trying(document, bits, staleness)
    if best is None:
        return
    plan = most_exact(Question(chain, SearchSpace(bits, staleness)))
    most = (1 + EXACTNESS_MARGIN) * best[0]
    assert plan.seconds_per_step <= most * (1 + 1e-9)
    wider = [width for width in bits if width > min(plan.layout.bits, default=32)]
    quickest = best_by_trying(document, tuple(wider), staleness) if wider else None
    assert quickest is None or quickest[0] > most * (1 - 1e-9)


def even_chain(stages: int = 2, blocks: int = 4, **changes: object) -> dict:
    """Describe a chain with a second a block anywhere, links of negligible time, and no difference between the widths."""
    runs = [[first, stop, float(stop - first)] for first, stop in itertools.combinations(range(blocks + 1), 2)]
    link = {"uplink": 8e9, "downlink": 8e9, "round_trip_seconds": 0.0}
    names = [f"s{index}" for index in range(stages)]
    document = chain_document(blocks, stages) | {
        "feature_bytes": [1.0] * (blocks + 1),
        "gradient_bytes": [1.0] * (blocks + 1),
        "encode": [0.0, 0.0],
        "min_bits": None,
        "workers": [{"name": name, "replayed": runs} for name in names],
        "links": along(names, changes.pop("links", [link] * (stages - 1))),
    }
    return document | changes


def planned(document: dict, bits: tuple[int, ...] = (2, 4, 32), staleness: int | None = None) -> Layout:
    return plan_chain(parse_profile(document, "chain"), bits, staleness, alone=False).layout


def test_of_equals_it_takes_the_smallest_cuts_and_then_the_most_bits():

    def cuts_and_bits(layout):
        return layout.cuts, layout.bits

    assert cuts_and_bits(planned(even_chain())) == ((2,), (32,))
    assert cuts_and_bits(planned(even_chain(3, 4))) == ((1, 2), (32, 32))
    # With K = 0 only the sum counts: every cut is equal except for the link, which 2 bits relieve.
    assert cuts_and_bits(planned(even_chain(), staleness=0)) == ((1,), (2,))


@pytest.mark.parametrize(("least", "bits"), [(1, 2), (2, 2), (3, 4), (4, 4), (5, 32), (32, 32)])
def test_no_link_has_fewer_bits_than_the_model_bears_at_its_cut(least, bits):
    assert planned(even_chain(min_bits=[least] * 5), staleness=0).bits == (bits,)


def test_more_bits_are_taken_for_as_long_as_the_link_is_not_the_slowest_part():
    def bits_at(uplink: float) -> tuple[int, ...]:
        link = {"uplink": uplink, "downlink": 8e9, "round_trip_seconds": 0.0}
        return planned(even_chain(feature_bytes=[1e6] * 5, links=[link])).bits

    assert bits_at(8e6 / 2.0) == (32,)  # 2 s at 32 bits, as long as a stage
    assert bits_at(8e6 / 2.1) == (4,)
    assert bits_at(8e6 / 16.0) == (4,)  # 2 s at 4 bits
    assert bits_at(8e6 / 16.1) == (2,)


def test_encoding_counts_at_the_sender():
    slow = {"uplink": 8e6 / 9.0, "downlink": 8e9, "round_trip_seconds": 0.0}
    document = even_chain(feature_bytes=[1e6] * 5, links=[slow], encode=[1.0, 0.0])
    chain = parse_profile(document, "chain")
    layout = plan_chain(chain, (4, 32)).layout
    assert (layout.cuts, layout.bits) == ((1,), (4,))
    loads, at = loads_of(chain, [layout]), conditions_of(chain)
    assert loads.worker_seconds(at) == {0: 2.0, 1: 3.0}
    assert loads.direction_seconds(at) == {(0, 1): pytest.approx(9.0 / 8), (1, 0): pytest.approx(1e-9)}


def test_the_round_trips_count_where_k_bounds_the_steps_in_flight():
    far = {"uplink": 8e12, "downlink": 8e12, "round_trip_seconds": 4.0}
    chain = parse_profile(even_chain(links=[far]), "chain")
    seconds = [plan_chain(chain, (32,), staleness, alone=False).seconds_per_step for staleness in (0, 1, 3, 4, None)]
    assert seconds == pytest.approx([8.0, 4.0, 2.0, 2.0, 2.0])


@given(profiles(complete=True), rates, st.sampled_from((0, 1, 2, 5)))
def test_two_stages_are_the_two_workers_of_a_profile(profile: Profile, link: Rates, staleness: int):
    """Alg. 2 is used over an endless run, without overhead and serial steps, which a chain does not know."""
    plain = replace(profile, workers=tuple(bare(worker) for worker in profile.workers))
    if len(plain) < 2:
        return
    bits = (2, 4, 8, 32)
    steps = 60 * 10**9
    try:
        expected = greedy(*asked(plain, link, SearchSpace(bits, staleness, allow_edge_only=False), steps))
    except PlanError:
        with pytest.raises(PlanError, match="no partition"):
            plan_chain(two_stages(plain, link), bits, staleness, alone=False)
        return
    found = plan_chain(two_stages(plain, link), bits, staleness, alone=False)
    assert found.seconds_per_step == pytest.approx(expected.seconds_per_step, rel=1e-6)
    at_its_cut = greedy(
        *asked(plain, link, SearchSpace(bits, staleness, found.layout.cuts, allow_edge_only=False), steps)
    )
    assert at_its_cut.seconds_per_step == pytest.approx(expected.seconds_per_step, rel=1e-6)


def bare(worker: WorkerProfile) -> WorkerProfile:
    return replace(worker, serial=np.full_like(worker.serial, np.nan), message=MessageSeconds())


def two_stages(profile: Profile, link: Rates) -> Profile:
    """Return the profile as one of a chain, which says nothing of K."""
    return replace(profile.with_links({profile.names: MeasuredLink(*astuple(link))}), max_staleness=None)


@given(st.integers(0, 10**6), st.sampled_from(STALENESS), st.booleans())
def test_the_best_order_is_that_of_trying_each(seed, staleness, linked):
    document = chain_document(5, 4, seed, ties=seed % 2 == 0)
    names = [worker["name"] for worker in document["workers"]]
    if linked:
        others = chain_document(2, 12, seed)["links"]
        far = [pair for pair in itertools.combinations(names, 2) if pair not in set(itertools.pairwise(names))]
        far_links = [link | {"between": list(hop)} for hop, link in zip(far, others, strict=False)]
        document |= {"links": document["links"] + far_links, "links_stay": False}
    found = []
    for order in itertools.permutations(range(1, 4)):
        workers = [document["workers"][index] for index in (0, *order)]
        order_names = [worker["name"] for worker in workers]
        turned = document | {"workers": workers}
        if not linked:
            turned["links"] = along(order_names, document["links"])
        best = best_by_trying(turned, (2, 32), staleness)
        if best is not None:
            found.append((best, tuple(order_names)))
    least = min(best[0] for best, _ in found)
    best, order = next(each for each in found if each[0][0] <= least * (1 + 1e-12))
    ordered = best_order(Question(parse_profile(document, "chain"), SearchSpace((2, 32), staleness)))
    plan = plan_chain(ordered, (2, 32), staleness)
    assert plan.seconds_per_step == pytest.approx(best[0], rel=1e-11)
    assert (ordered.names, plan.layout.workers, plan.layout.cuts, plan.layout.bits) == (order, *best[1:])


def test_an_order_needs_the_links_that_it_would_use():
    document = chain_document(4, 3) | {"links_stay": False}
    with pytest.raises(PlanError, match=r"nothing is known of the rates of a link from 's0' to 's2'"):
        best_order(Question(parse_profile(document, "chain"), SearchSpace((32,))))


def test_more_stages_than_can_be_ordered_are_refused():
    with pytest.raises(PlanError, match="there are 9 stages, and orders are searched of 8 at most"):
        best_order(Question(parse_profile(chain_document(9, 9), "chain"), SearchSpace((32,))))


@pytest.mark.parametrize(("bits", "staleness"), [((), None), ((0,), None), ((33,), None), ((32,), -1)])
def test_impossible_widths_and_staleness_are_refused(bits, staleness):
    with pytest.raises(PlanError, match=r"bit widths are|staleness is -1"):
        plan_chain(parse_profile(chain_document(3, 2), "chain"), bits, staleness)
