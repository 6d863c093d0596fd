"""Handovers: the blocks that move when another trainer takes over, and the seconds that they take."""

import math

import numpy as np
import pytest

from edge_agent.planning.cost import DeviceLinks, handover
from tests.support.planning.cases import small_profile

PROFILE = small_profile()
HELD = 8 * PROFILE.bytes_before
UP, DOWN, BETWEEN, TRIP = np.array([math.inf, 1e6, 2e6]), np.array([math.inf, 3e6, 4e6]), 5e6, np.array([0.0, 0.1, 0.2])
LINKS = DeviceLinks(UP, DOWN, TRIP)
EVERYONE, CUTS = np.arange(3), np.array([4, 1, 3])


def ways(here, links=LINKS, cuts=CUTS):
    return handover(PROFILE, links, (here, int(cuts[here])), (EVERYONE, cuts), BETWEEN)


def test_each_block_goes_straight_from_its_owner_to_the_next_one():
    found = ways(1)
    assert found.bits == pytest.approx([HELD[4] - HELD[1], 0.0, HELD[4] - HELD[1]])
    assert found.seconds[0] == pytest.approx((HELD[4] - HELD[1]) / DOWN[1] + 4 * TRIP[1])
    longest = max((HELD[3] - HELD[1]) / DOWN[1], (HELD[4] - HELD[3]) / BETWEEN)
    assert found.seconds[2] == pytest.approx(longest + 4 * TRIP[2]), (
        "links carry side by side, and the longer trip counts"
    )


def test_the_device_gives_what_it_had_alone():
    found = ways(0)
    assert found.bits == pytest.approx([0.0, HELD[4] - HELD[1], HELD[4] - HELD[3]])
    assert found.seconds[2] == pytest.approx((HELD[4] - HELD[3]) / UP[2] + 4 * TRIP[2])


def test_another_cut_with_the_same_trainer_moves_what_lies_between():
    found = handover(PROFILE, LINKS, (1, 3), (np.array([1, 1]), np.array([1, 4])), BETWEEN)
    assert found.bits == pytest.approx([HELD[3] - HELD[1], HELD[4] - HELD[3]])
    assert found.seconds[0] == pytest.approx((HELD[3] - HELD[1]) / UP[1] + 4 * TRIP[1])


def test_what_lies_with_a_lost_trainer_comes_through_another_one_and_to_the_device_alone_last():
    lost = DeviceLinks(UP * [1, 0, 1], DOWN * [1, 0, 1], TRIP * [1, 0, 1])
    found = ways(1, lost)
    assert found.bits == pytest.approx(ways(1).bits)
    assert found.seconds[2] == pytest.approx((HELD[3] - HELD[1]) / DOWN[2] + 4 * TRIP[2])
    assert found.seconds[0] == pytest.approx(HELD[4] - HELD[1]), "a bit a second: all others come first"
    assert ways(0, lost).seconds[1] == math.inf
