"""Members that are linked and give nothing: the trainer names them, and goes on without them after a bounded time."""

import pytest

from tests.support.group_flags import ACCEPTING
from tests.support.running_group import STEPS, Running, gated, ranks_in

pytestmark = pytest.mark.usefixtures("one_thread")
BOUNDED = ['groups=[{name="line", size=2, checkpoint_steps=2, longest_wait_seconds=2.0}]', ACCEPTING]


@pytest.mark.slow
def test_a_member_that_hangs_is_named_and_left_out_until_it_begins_again(tmp_path):
    gate, logs = tmp_path / "gate", tmp_path / "log"
    hangs_after = 10
    reads = 32 * (1 + hangs_after) + 2  # a batch of 32 is looked at, and one sample twice
    more = {0: ['data.train={factory="tests.support.samples:Slow", kwargs={seconds=0.02}}'], 1: [gated(gate, reads)]}
    with Running(tmp_path, more=more, group=BOUNDED, step_logs={"near": logs}) as running:
        _, said = running.trainer()
        members = [running.member(0)]
        assert members[0][1].first_event("the group waits for members that are away")["ranks"] == [1]
        members.append(running.member(1))
        late = said.first_event("a step waits for a member")
        assert (late["group"], late["rank"], late["step"], late["linked"]) == ("line", 1, hangs_after, True)
        left_out = said.first_event("a group goes on without a member")
        assert (left_out["rank"], left_out["step"]) == (1, hangs_after)
        gate.touch()
        for process, last in members:
            assert process.wait(120) == 0, last
        took_part = ranks_in(logs)
        assert {took_part[key] for key in took_part if key[0] < hangs_after} == {(0, 1)}
        assert {took_part[key] for key in took_part if key[0] == hangs_after} == {(0,)}
        assert {step for step, *_ in took_part} == set(range(STEPS))
        running.assert_whole(members, lambda step, one: took_part[step, *one])
