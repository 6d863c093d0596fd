"""Wishes for another placement, before they come into force: which of them counts, and who is named as the chooser."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace

import pytest

from edge_agent.control.pins import check_stands
from edge_agent.training.choosers import Chooser
from edge_agent.training.deployer import Deployer
from edge_agent.training.step_boundary import StepBoundary
from shared.errors import StoppedError
from shared.placement import at_cuts, hand_over, two_workers
from shared.transport.rpc.status import StatusError

START = two_workers("edge", "trainer", 1, 4, 8)


def elsewhere(cut, placement=START):
    return at_cuts(placement, (cut,))


class Experiment:
    """Its schedule sets K to 3 from the first step on."""

    scheduled_steps = (1,)

    def scheduled_at(self, _step, placement):
        return replace(placement, staleness=3)


@pytest.fixture
def session():
    return SimpleNamespace(placement=START, experiment=Experiment())


@pytest.fixture
def unprepared():
    return asyncio.Event()


@pytest.fixture
def deployer(session, unprepared):
    return Deployer(session, None, StepBoundary(), None, lambda: True, unprepared)


def test_what_the_engine_wants_does_not_replace_what_an_operator_waits_for(deployer):
    deployer.want(elsewhere(2), Chooser.OPERATOR)
    deployer.want(elsewhere(3), Chooser.ENGINE)
    assert deployer.placement.tiles == elsewhere(2).tiles


def test_an_operator_replaces_what_the_engine_wants_and_may_take_it_back(deployer):
    deployer.want(elsewhere(3), Chooser.ENGINE)
    deployer.want(START, Chooser.OPERATOR)
    assert not deployer.is_ready


async def test_of_two_operators_the_later_counts_and_the_earlier_is_told(deployer):
    deployer.want(elsewhere(2), Chooser.OPERATOR)
    first = deployer.in_force()
    first.send(None)
    deployer.want(elsewhere(3), Chooser.OPERATOR)
    assert deployer.placement.tiles == elsewhere(3).tiles
    with pytest.raises(StoppedError, match="another placement was asked for"):
        first.send(None)


def test_an_operator_is_told_that_a_trainer_that_stops_is_left_first(deployer):
    check_stands(deployer.want(elsewhere(2), Chooser.DRAIN))
    with pytest.raises(StatusError, match="a trainer is about to stop, and its blocks go to another one first"):
        check_stands(deployer.want(elsewhere(3), Chooser.OPERATOR))
    assert deployer.placement.tiles == elsewhere(2).tiles


def test_a_schedule_sets_its_part_of_whatever_is_wanted(deployer):
    deployer.want(elsewhere(2), Chooser.OPERATOR)
    deployer.follow_schedules(1)
    assert (deployer.placement.tiles, deployer.placement.staleness) == (elsewhere(2).tiles, 3)
    deployer.want(elsewhere(3), Chooser.ENGINE)
    assert deployer.placement.tiles == elsewhere(2).tiles, "it is the operator's still"


async def test_a_schedule_leaves_a_request_its_callers(deployer):
    deployer.want(elsewhere(2), Chooser.OPERATOR)
    waiting = asyncio.create_task(deployer.in_force())
    await asyncio.sleep(0)
    deployer.follow_schedules(1)
    deployer.follow_schedules(2)
    await asyncio.sleep(0)
    assert not waiting.done()
    waiting.cancel()


def test_a_placement_to_which_training_went_back_was_chosen_by_recovery(deployer, session):
    assert deployer.chosen_by is Chooser.CONFIGURATION
    session.placement = replace(START, version=7)
    assert deployer.chosen_by is Chooser.CONFIGURATION
    session.placement = elsewhere(4)
    assert str(deployer.chosen_by) == "recovery"


def test_a_trainer_that_is_to_have_its_first_blocks_is_prepared_before_any_boundary(deployer, unprepared):
    deployer.want(elsewhere(2), Chooser.OPERATOR)
    assert (deployer.is_due, unprepared.is_set()) == (True, False), "the trainer has blocks already"
    deployer.want(hand_over(START, "trainer", "other"), Chooser.OPERATOR)
    assert (deployer.is_due, unprepared.is_set()) == (False, True)
    assert deployer.named == {"edge", "trainer", "other"}
