"""Groups of real processes whose blocks go in slices: whoever is lost between two of a block, all end as one loop does."""

import signal

import pytest

from shared.errors import ExitCode
from tests.integration.recovery.test_group_joining import Joined
from tests.support.group_members import PlainCodecs
from tests.support.running_group import (
    LEFT,
    SIZE,
    SLOWLY,
    STEPS,
    WITHOUT_THE_LATE,
    Running,
    gated,
    joined_late,
    ranks_in,
)

pytestmark = pytest.mark.usefixtures("one_thread")
WIDE = ["model.kwargs={depth=3, hidden=362}", 'training.optimizer={name="adam", learning_rate=0.003}']
"""A model whose second block goes in two slices, and an optimizer that updates slices."""
SLICES = {(0, 0), (1, 0), (1, 1), (2, 0)}
CUT_BLOCKS_SLICES = 2
"""Slices that are updated each by itself in a step: those of the block that has several."""
UPDATE = "shared.training.held_blocks:HeldBlocks.update_slice"
ENCODE = "shared.runtime.block_form:BlockForm.encode"
"""Work of a member for each slice that it sends."""


def sliced(folder, trainers=("near",), more=(), slowly=False, **how):
    """Return trainers and members of a group with slices. more: further flags of all members. how: see `Running`."""
    flags = {rank: [*WIDE, *more, *(SLOWLY[rank] if slowly else [])] for rank in range(SIZE)}
    return Running(folder, trainers, flags, step_logs={name: folder / f"{name}-log" for name in trainers}, **how)


def ranks_of(running):
    """Return who took part by step, block and slice, at all trainers, and see that all slices are there."""
    found = {key: ranks for log in running.step_logs.values() for key, ranks in ranks_in(log).items()}
    assert set(found) == {(step, *one) for step in range(STEPS) for one in SLICES}
    return found


@pytest.mark.slow
def test_a_trainer_that_is_killed_between_two_slices_of_a_block_brings_the_group_back(tmp_path):
    with sliced(tmp_path) as running:
        killed = running.trainer_killed_at(UPDATE, nth=10 * CUT_BLOCKS_SLICES + 2)
        members = [running.member(rank) for rank in range(SIZE)]
        assert killed.wait(60) == -signal.SIGKILL
        _, said = running.trainer()
        assert said.first_event("a group begins")["step"] <= 10
        running.assert_whole(members)
        assert set(ranks_of(running).values()) == {(0, 1)}


@pytest.mark.slow
@pytest.mark.parametrize("codec", [pytest.param("raw", marks=pytest.mark.full), "uniform3"])
def test_a_member_that_is_killed_between_two_slices_of_a_block_does_what_it_has_not_done(codec, tmp_path):
    with sliced(tmp_path, more=[f"group.weights_codec={codec}"]) as running:
        running.trainer()
        killed = running.member_killed_at(ENCODE, 1, nth=10 * len(SLICES) + 3)
        members = [running.member(0)]
        assert killed.wait(60) == -signal.SIGKILL
        members.append(running.member(1))
        running.assert_whole(members, codecs=PlainCodecs(down=codec))


@pytest.mark.slow
def test_one_of_two_trainers_that_is_killed_between_two_slices_loses_nothing_that_members_lack_of_weights(tmp_path):
    with sliced(tmp_path, ("near", "far"), ["group.weights_codec=uniform3"]) as running:
        running.trainer("far")
        killed = running.trainer_killed_at(UPDATE, "near", 10 * CUT_BLOCKS_SLICES + 2)
        members = [running.member(rank) for rank in range(SIZE)]
        assert killed.wait(60) == -signal.SIGKILL
        running.trainer("near")
        running.assert_whole(members, codecs=PlainCodecs(down="uniform3"))


@pytest.mark.full
def test_a_member_leaves_all_slices_of_a_block_at_the_same_step(tmp_path):
    with sliced(tmp_path, ("near", "far"), slowly=True) as running:
        said = [running.trainer(name)[1] for name in running.ports]
        members = [running.member(rank) for rank in range(SIZE)]
        said[0].first_event("checkpoint of a group", least_step=4)
        running.leave(1)
        assert members[1][0].wait(60) == ExitCode.TERMINATED
        stop = int(LEFT.search(str(members[1][1]))[1])
        running.assert_whole(members[:1], lambda step, _: (0, 1) if step < stop else (0,))
        assert all(ranks == ((0, 1) if step < stop else (0,)) for (step, *_), ranks in ranks_of(running).items())


@pytest.mark.full
def test_a_newcomer_counts_in_all_slices_of_a_block_from_the_same_step_on(tmp_path):
    with Joined(tmp_path, ("near", "far"), more=WIDE) as running:
        said = [running.trainer(name)[1] for name in running.ports]
        members = [running.member(rank) for rank in range(SIZE)]
        said[0].first_event("checkpoint of a group", least_step=4)
        newcomer, _ = running.newcomer(*said)
        running.assert_joined([*members, newcomer])
        assert {number for _, _, number in ranks_of(running)} == {0, 1}


@pytest.mark.full
def test_slices_that_go_on_without_a_late_member_equal_the_loop_that_reads_its_log(tmp_path):
    gate = tmp_path / "gate"
    with sliced(tmp_path, group=WITHOUT_THE_LATE) as running:
        running.more[0] = [*running.more[0], gated(gate, 200)]
        members = joined_late(running, gate)
        ranks = ranks_of(running)
        assert {(0,), (0, 1)} <= set(ranks.values())
        running.assert_whole(members, lambda step, one: ranks[step, *one])
