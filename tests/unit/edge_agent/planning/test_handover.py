"""Handovers: the blocks that move when another trainer takes over, and the seconds that they take."""

import math

import numpy as np
import pytest

from edge_agent.planning.cost import DeviceLinks, handed_over_bits, handover_seconds
from tests.support.planning.cases import small_profile

PROFILE = small_profile()
HELD = 8 * PROFILE.bytes_before
UP, DOWN, BETWEEN, TRIP = np.array([math.inf, 1e6, 2e6]), np.array([math.inf, 3e6, 4e6]), 5e6, np.array([0.0, 0.1, 0.2])
LINKS = DeviceLinks(UP, DOWN, TRIP)
EVERYONE, CUTS = np.arange(3), np.array([4, 1, 3])


def seconds_from(here, links=LINKS):
    return handover_seconds(PROFILE, links, (here, int(CUTS[here])), (EVERYONE, CUTS), BETWEEN)


def bits_from(before, after):
    return sum(handed_over_bits(PROFILE, before, after).values())


def test_each_block_goes_straight_from_its_owner_to_the_next_one():
    found = seconds_from(1)
    assert bits_from((1, 1), (EVERYONE, CUTS)) == pytest.approx([HELD[4] - HELD[1], 0.0, HELD[4] - HELD[1]])
    assert found[0] == pytest.approx((HELD[4] - HELD[1]) / DOWN[1] + 4 * TRIP[1])
    longest = max((HELD[3] - HELD[1]) / DOWN[1], (HELD[4] - HELD[3]) / BETWEEN)
    assert found[2] == pytest.approx(longest + 4 * TRIP[2]), "links carry side by side, and the longer trip counts"


def test_the_device_gives_what_it_had_alone():
    found = seconds_from(0)
    assert bits_from((0, 4), (EVERYONE, CUTS)) == pytest.approx([0.0, HELD[4] - HELD[1], HELD[4] - HELD[3]])
    assert found[2] == pytest.approx((HELD[4] - HELD[3]) / UP[2] + 4 * TRIP[2])


def test_another_cut_with_the_same_trainer_moves_what_lies_between():
    after = np.array([1, 1]), np.array([1, 4])
    found = handover_seconds(PROFILE, LINKS, (1, 3), after, BETWEEN)
    assert bits_from((1, 3), after) == pytest.approx([HELD[3] - HELD[1], HELD[4] - HELD[3]])
    assert found[0] == pytest.approx((HELD[3] - HELD[1]) / UP[1] + 4 * TRIP[1])


def test_what_lies_with_a_lost_trainer_comes_through_another_one_and_to_the_device_alone_last():
    lost = DeviceLinks(UP * [1, 0, 1], DOWN * [1, 0, 1], TRIP * [1, 0, 1])
    found = seconds_from(1, lost)
    assert found[2] == pytest.approx((HELD[3] - HELD[1]) / DOWN[2] + 4 * TRIP[2])
    assert found[0] == pytest.approx(HELD[4] - HELD[1]), "a bit a second: all others come first"
    assert seconds_from(0, lost)[1] == math.inf
