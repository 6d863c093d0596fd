"""Statuses of the trainers of a session after any changes, and the trainers that stand in for others."""

import re
from types import SimpleNamespace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from edge_agent.sessions import membership
from edge_agent.sessions.membership import MEMBERS, Membership, MemberStatus
from shared.placement import AGENT, Placement, Rows, Source, Tile, held_blocks, two_workers
from tests.support.examples import examples

NAMES = ("near", "far", "spare", "late")
WHOLE = Rows(0, 8)


def worker(name, client=None):
    """A worker of this name, at the trainer itself unless another one's calls are given."""
    return SimpleNamespace(name=name, client=client or f"to {name}")


def placed(*owners):
    """A placement of one block for each of these workers, in their order."""
    tiles = tuple(Tile(owner, block, block + 1, WHOLE) for block, owner in enumerate(owners))
    return Placement(0, len(owners), 8, (AGENT, *dict.fromkeys(owners)), tiles, (Source(AGENT, WHOLE),))


def permitted():
    """The changes of the module's table, with the methods that make them."""
    rows = [line.strip("| ").split(" | ") for line in membership.__doc__.splitlines() if line.startswith("| ")]
    (_, *to), *changes = rows
    return {
        (before, after): set(re.findall(r"`(\w+)`", cell))
        for before, *cells in changes
        for after, cell in zip(to, cells, strict=True)
    }


@pytest.fixture
def members():
    placement = two_workers("edge", "trainer", 1, 4, 8)
    return Membership({"trainer": worker("trainer")}, (), placement, {"spare": "to spare"})


def test_a_trainer_that_is_left_out_is_asked_itself_not_the_one_that_stood_in_for_it(members):
    members.stand_in(worker("trainer", "to spare"), "spare")
    assert (members["trainer"].client, members.client("trainer")) == ("to spare", "to spare")
    assert (members.own_client("trainer"), members.stand_ins) == ("to trainer", {"trainer": "spare"})
    members.leave_out(["trainer"])
    assert (members.client("trainer"), members.own_client("trainer")) == ("to trainer", None)
    assert members.stand_ins == {}


def test_a_trainer_that_is_back_under_its_own_name_stands_in_for_nobody(members):
    members.stand_in(worker("trainer", "to spare"), "spare")
    members.stand_in(worker("trainer"), "trainer")
    assert (members.stand_ins, members.own_client("trainer")) == ({}, None)


def test_what_a_trainer_without_blocks_is_follows_from_what_it_was_told(members):
    members.admit(worker("spare"))
    members.need(["spare"])
    assert (members.needed, members.status("trainer")) == (["spare"], MemberStatus.BEHIND)
    assert not members.are_present(["trainer"])
    members.note_told(["trainer", "spare"])
    assert members.are_present(["trainer", "spare"])
    assert members.needed == ["spare"]


def test_one_that_held_a_step_up_does_so_until_steps_are_done_or_it_is_let_in_again(members):
    members.note_stall("trainer")
    members.leave_out(["trainer"])
    members.note_progress()
    assert members.stalled == ["trainer"], "steps of others say nothing of it"
    members.admit(worker("trainer"))
    assert members.stalled == []
    members.need(["trainer"])
    members.note_stall("trainer")
    members.note_progress()
    assert members.stalled == []


@pytest.mark.parametrize(("change", "arguments"), [("release", ()), ("miss", ("away",))])
def test_a_trainer_that_the_run_waits_for_is_neither_released_nor_missed(members, change, arguments):
    with pytest.raises(AssertionError, match="'trainer'"):
        getattr(members, change)("trainer", *arguments)
    assert members.needed == ["trainer"]


def test_the_keeper_of_replicas_is_a_member_without_blocks_that_is_there(members):
    members.appoint("spare")
    assert members.keeper is None, "it is no member"
    members.admit(worker("spare"))
    assert members.keeper == "spare"
    members.miss("spare", "away")
    assert members.keeper is None
    members.need(["spare"])
    assert members.keeper is None, "it has blocks itself"
    members.need(["trainer"])
    assert members.keeper == "spare"


class Changing(RuleBasedStateMachine):
    """A session whose placement changes, and whose trainers come and go."""

    def __init__(self):
        super().__init__()
        self.placement = placed("near", "far")
        workers = {name: worker(name) for name in ("near", "far")}
        self.members = Membership(workers, (), self.placement, {"spare": "to spare", "late": "to late"})
        self.permitted = permitted()

    def change(self, method, *arguments):
        """Call a method, and hold that it made permitted changes alone."""
        before = {name: self.members.status(name) for name in NAMES}
        getattr(self.members, method)(*arguments)
        for name, status in before.items():
            if (after := self.members.status(name)) is not status:
                assert method in self.permitted[status.value, after.value], (name, method, status, after)

    def named(self, *statuses):
        return [name for name in NAMES if self.members.status(name) in statuses]

    @rule(owners=st.lists(st.sampled_from(NAMES), min_size=1, max_size=3))
    def another_placement(self, owners):
        if all(name in self.members for name in owners):
            self.placement = placed(*owners)
            self.change("need", [one.name for one in self.members.holders(self.placement)])

    @rule(name=st.sampled_from(NAMES))
    def back_to_a_checkpoint_that_needs(self, name):
        if name in self.members:
            self.placement = placed(name)
            self.change("need", [name])

    @rule(name=st.sampled_from(NAMES))
    def admit(self, name):
        self.change("admit", self.members.everybody.get(name) or worker(name))

    @rule(name=st.sampled_from(NAMES), method=st.sampled_from(["miss", "release", "note_told"]))
    def change_one_without_blocks(self, name, method):
        if self.members.may_miss(name):
            arguments = {"miss": (name, "away"), "release": (name,), "note_told": ([name],)}
            self.change(method, *arguments[method])

    @rule(name=st.sampled_from(NAMES))
    def leave_out(self, name):
        if name in self.members:
            self.change("leave_out", [name])

    @rule(name=st.sampled_from(NAMES), other=st.sampled_from(NAMES))
    def stand_in(self, name, other):
        if name in self.members:
            self.change("stand_in", worker(name, f"to {other}"), other)

    @rule(name=st.sampled_from(NAMES))
    def hold_up(self, name):
        if name in self.members:
            self.change("note_stall", name)

    @rule()
    def get_on(self):
        self.change("note_progress")
        assert not {*self.members.stalled}.intersection(self.members.needed)

    @invariant()
    def the_run_waits_for_the_holders_of_blocks_that_it_has(self):
        left = {*self.named(MemberStatus.LEFT_OUT, MemberStatus.CANDIDATE)}
        assert (
            set(self.members.needed)
            == {name for name in NAMES if held_blocks(self.placement, name)} - left - self._late()
        )

    def _late(self):
        """Holders that were left out, and are members again: they get their blocks from the next placement."""
        return {
            name for name in self.named(MemberStatus.PRESENT, MemberStatus.ABSENT) if held_blocks(self.placement, name)
        }

    @invariant()
    def every_trainer_has_one_status_and_members_are_those_with_a_part(self):
        by_status = [self.members.named(status) for status in MemberStatus]
        assert sorted(name for named in by_status for name in named) == sorted(NAMES)
        assert {*self.members} == {*self.named(*MEMBERS)}
        assert len(self.members) == len([*self.members])
        assert {*self.members.everybody} == {*NAMES} - {*self.members.candidates}
        assert {*self.members.everybody} == {*self.members} | {*self.members.left_out}

    @invariant()
    def others_stand_in_for_members_alone_and_everybody_else_is_asked_itself(self):
        assert self.members.stand_ins.keys() <= {*self.members}
        for name in NAMES:
            assert self.members.client(name) == f"to {self.members.stand_ins.get(name, name)}"
            assert self.members.own_client(name) == (f"to {name}" if name in self.members.stand_ins else None)


Changing.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=20, deadline=None)
TestMembership = Changing.TestCase
