"""Members of real processes that join a group, or come back to it: the weights are those of a loop that knows who took part."""

import signal
import subprocess

import pytest
from safetensors.torch import load_file

from shared.errors import ExitCode
from tests.chaos import sides
from tests.chaos.faults import Fault, Planned
from tests.support.forked import Forked
from tests.support.group_flags import ACCEPTING, SHARD, group_of
from tests.support.group_members import PlainCodecs
from tests.support.plain import assert_same_bits
from tests.support.running import edge_config
from tests.support.running_group import SIZE, SLOW_SECONDS, SLOWLY, STEPS, Running, gated, ranks_in

pytestmark = pytest.mark.usefixtures("one_thread")
NEWCOMER = SIZE
TWO = pytest.mark.parametrize("trainers", [pytest.param(("near",), marks=pytest.mark.full), ("near", "far")])
WITH_ROOM = [f'groups=[{{name="line", size={SIZE}, most={SIZE + 1}, checkpoint_steps=2}}]', ACCEPTING]
BEGIN = "cloud_trainer.groups.trained_group:TrainedGroup.begin"
ASKING = "edge_agent.sessions.trainer_worker:TrainerWorker.begin_in_group"
TELLING = "edge_agent.sessions.trainer_worker:TrainerWorker.join_group"


class Joined(Running):
    """Trainers with a group that has a rank for a newcomer, which has samples of its own.

    All members are slow, and the first ones stand still before their end until there is a file `gate`: a newcomer takes
    longer to start than they do to train.
    """

    def __init__(self, folder, trainers=("near",), more=(), before=24 * 32):
        """more: further flags of all members. before: the samples that the first members read without the gate."""
        self._all, self.gate = more, folder / "gate"
        waits = [gated(self.gate, before, SLOW_SECONDS)]
        super().__init__(
            folder,
            trainers,
            {**dict.fromkeys(range(SIZE), waits), NEWCOMER: SLOWLY[0]},
            WITH_ROOM,
            {name: folder / f"{name}-log" for name in trainers},
        )
        self.configs.append(edge_config(*self._flags(NEWCOMER)))

    def _flags(self, rank):
        flags = [*super()._flags(rank), *self._all]
        return [flag for flag in flags if flag != SHARD] if rank >= SIZE else flags

    def newcomer(self, *said):
        """Start the newcomer, and open the gate once it joins at each of these trainers; returns it and its first step."""
        member = self.member(NEWCOMER)
        (first,) = {each.first_event("a member joins")["first_step"] for each in said}
        self.gate.touch()
        return member, first

    def newcomer_killed_at(self, point, nth=1):
        """Start the newcomer, have it killed when it comes to a function for the nth time, wait for that, and open the gate."""
        planned = [Planned("member", Fault.KILL_AGENT, point, nth)]
        process = Forked(
            sides.member,
            [*self._flags(NEWCOMER), "control.listen=none"],
            "newcomer",
            planned,
            self.folder,
            stderr=subprocess.DEVNULL,
        )
        self.stack.callback(process.kill)
        assert process.wait(60) == -signal.SIGKILL
        self.gate.touch()

    def ranks(self):
        """Return the ranks by step, on which all trainers and blocks agree."""
        found = {}
        for log in self.step_logs.values():
            for (step, *_), ranks in ranks_in(log).items():
                assert found.setdefault(step, ranks) == ranks, f"the trainers do not agree on step {step}"
        return found

    def assert_joined(self, members, up="raw", down="raw"):
        """Wait for all, and hold the weights to the ranks by step; returns the newcomer's first step.

        up, down: codecs of gradients and of weights; the newcomer has nothing left of one before its first step.
        """
        for process, said in members:
            assert process.wait(120) == 0, said
        ranks = self.ranks()
        first = min(step for step, took in ranks.items() if NEWCOMER in took)
        assert 0 < first < STEPS
        assert all((NEWCOMER in took) == (step >= first) for step, took in ranks.items())
        self.assert_whole(members, lambda step, _: ranks[step], PlainCodecs(up, [(NEWCOMER, first)], down))
        return first


@pytest.mark.slow
@TWO
def test_a_newcomer_counts_from_the_step_on_at_which_it_joins(trainers, tmp_path):
    with Joined(tmp_path, trainers) as running:
        said = [running.trainer(name)[1] for name in trainers]
        members = [running.member(rank) for rank in range(SIZE)]
        said[0].first_event("checkpoint of a group", least_step=4)
        newcomer, first = running.newcomer(*said)
        assert running.assert_joined([*members, newcomer]) == first
        for each in said:
            each.first_event("a group has ended")


@pytest.mark.slow
@TWO
def test_a_newcomer_begins_with_the_weights_that_members_have_by_a_codec(trainers, tmp_path):
    coded = ["group.codec=uniform3", "group.weights_codec=uniform3"]
    with Joined(tmp_path, trainers, more=coded) as running:
        said = [running.trainer(name)[1] for name in trainers]
        members = [running.member(rank) for rank in range(SIZE)]
        said[0].first_event("checkpoint of a group", least_step=4)
        newcomer, _ = running.newcomer(*said)
        running.assert_joined([*members, newcomer], "uniform3", "uniform3")


@pytest.mark.slow
def test_a_newcomer_that_is_killed_begins_again_with_the_weights_that_members_have_by_a_codec(tmp_path):
    trainers, coded = ("near", "far"), ["group.weights_codec=uniform3"]
    with Joined(tmp_path, trainers, more=coded) as running:
        said = [running.trainer(name)[1] for name in trainers]
        members = [running.member(rank) for rank in range(SIZE)]
        said[0].first_event("checkpoint of a group", least_step=4)
        (newcomer, _), first = running.newcomer(said[1])
        said[1].first_event("checkpoint of a group", least_step=first + 2)
        newcomer.send_signal(signal.SIGKILL)
        newcomer.wait()
        members.append(running.member(NEWCOMER))
        running.assert_joined(members, down="uniform3")


@pytest.mark.full
def test_everybody_ends_with_the_same_weights_where_members_may_be_ahead(tmp_path):
    trainers = ("near", "far")
    with Joined(tmp_path, trainers, more=["deployment.staleness=2"]) as running:
        said = [running.trainer(name)[1] for name in trainers]
        members = [running.member(rank) for rank in range(SIZE)]
        said[0].first_event("checkpoint of a group", least_step=4)
        newcomer, first = running.newcomer(*said)
        for process, last in [*members, newcomer]:
            assert process.wait(120) == 0, last
        ranks = running.ranks()
        assert all((NEWCOMER in took) == (step >= first) for step, took in ranks.items())
        first_model, *others = (
            load_file(tmp_path / f"member-{rank}" / "model.safetensors") for rank in range(SIZE + 1)
        )
        for other in others:
            assert_same_bits(first_model, other)


@pytest.mark.full
@TWO
def test_a_member_that_has_left_comes_back(trainers, tmp_path):
    with Joined(tmp_path, trainers, before=36 * 32) as running:  # a member that waits for the gate cannot leave
        said = [running.trainer(name)[1] for name in trainers]
        members = [running.member(rank) for rank in range(SIZE)]
        said[0].first_event("checkpoint of a group", least_step=4)
        running.leave(1)
        assert members[1][0].wait(60) == ExitCode.TERMINATED
        members[1] = running.member(1)
        said[0].first_event("a member joins")
        running.gate.touch()
        for process, last in members:
            assert process.wait(120) == 0, last
        ranks = running.ranks()
        assert {(0,), (0, 1)} == set(ranks.values())
        assert (ranks[0], ranks[STEPS - 1]) == ((0, 1), (0, 1))
        running.configs.pop()
        running.assert_whole(members, lambda step, _: ranks[step])


@pytest.mark.slow
@TWO
def test_a_newcomer_joins_while_another_member_leaves(trainers, tmp_path):
    with Joined(tmp_path, trainers) as running:
        said = [running.trainer(name)[1] for name in trainers]
        members = [running.member(rank) for rank in range(SIZE)]
        said[0].first_event("checkpoint of a group", least_step=4)
        newcomer = running.member(NEWCOMER)
        while said[0].first_event("a member begins")["rank"] != NEWCOMER:
            pass
        running.leave(1)
        running.gate.touch()
        assert members[1][0].wait(60) == ExitCode.TERMINATED
        for process, last in (members[0], newcomer):
            assert process.wait(120) == 0, last
        ranks = running.ranks()
        assert (ranks[0], ranks[STEPS - 1]) == ((0, 1), (0, NEWCOMER))
        running.assert_whole(members[:1], lambda step, _: ranks[step])


@pytest.mark.full
@pytest.mark.parametrize(
    ("point", "nth", "counts"),
    [
        (ASKING, 1, False),
        (TELLING, 1, False),
        ("edge_agent.sessions.open_session:OpenSession.collect", 1, True),
        ("shared.execution.blocks:PlacedBlocks.backward", 3, True),
    ],
)
@TWO
def test_a_newcomer_that_is_killed_holds_nobody_up_before_it_has_joined(trainers, point, nth, counts, tmp_path):
    with Joined(tmp_path, trainers) as running:
        said = [running.trainer(name)[1] for name in trainers]
        members = [running.member(rank) for rank in range(SIZE)]
        said[0].first_event("checkpoint of a group", least_step=4)
        running.newcomer_killed_at(point, nth)
        if counts:  # it is a member that is away: the group waits for it
            members.append(running.member(NEWCOMER))
            running.assert_joined(members)
            return
        for process, last in members:
            assert process.wait(120) == 0, last
        ranks = running.ranks()
        assert set(ranks.values()) == {(0, 1)}
        running.assert_whole(members, lambda step, _: ranks[step])


@pytest.mark.slow
@pytest.mark.parametrize("killed", [pytest.param("near", marks=pytest.mark.full), "far"])
@pytest.mark.parametrize(
    "after",
    [
        pytest.param("a member joins", marks=pytest.mark.full),
        "a member begins",
        pytest.param("checkpoint of a group", marks=pytest.mark.full),
    ],
)
def test_a_trainer_that_is_killed_around_a_join_does_the_steps_again_with_the_same_members(killed, after, tmp_path):
    trainers = ("near", "far")
    with Joined(tmp_path, trainers) as running:
        processes = {name: running.trainer(name) for name in trainers}
        members = [running.member(rank) for rank in range(SIZE)]
        process, said = processes[killed]
        said.first_event("checkpoint of a group", least_step=4)
        newcomer, first = running.newcomer(said)
        if after != "a member joins":
            said.first_event(after, least_step=first)
        process.send_signal(signal.SIGKILL)
        process.wait()
        running.trainer(killed)
        assert running.assert_joined([*members, newcomer]) == first


@pytest.mark.full
@pytest.mark.parametrize("point", ["begin", "join"])
@pytest.mark.parametrize("killed", ["near", "far"])
def test_a_trainer_that_is_killed_while_a_newcomer_asks_or_tells_it(killed, point, tmp_path):
    trainers = ("near", "far")
    (other,) = set(trainers) - {killed}
    with Joined(tmp_path, trainers) as running:
        nth = SIZE + 1 if point == "begin" else 1
        process = running.trainer_killed_at(f"cloud_trainer.groups.trained_group:TrainedGroup.{point}", killed, nth)
        _, said = running.trainer(other)
        members = [running.member(rank) for rank in range(SIZE)]
        said.first_event("checkpoint of a group", least_step=4)
        members.append(running.member(NEWCOMER))
        assert process.wait(60) == -signal.SIGKILL
        running.gate.touch()
        running.trainer(killed)
        running.assert_joined(members)


@pytest.mark.full
def test_a_member_that_is_killed_while_a_newcomer_joins_comes_back(tmp_path):
    with Joined(tmp_path) as running:
        _, said = running.trainer()
        members = [running.member(rank) for rank in range(SIZE)]
        said.first_event("checkpoint of a group", least_step=4)
        newcomer, _ = running.newcomer(said)
        members[1][0].send_signal(signal.SIGKILL)
        members[1][0].wait()
        running.assert_joined([members[0], running.member(1), newcomer])


@pytest.mark.full
def test_the_last_member_comes_back_to_a_group_that_stands_still(tmp_path):
    with Joined(tmp_path) as running:
        running.gate.touch()
        trainer, said = running.trainer()
        members = [running.member(rank) for rank in range(SIZE)]
        said.first_event("checkpoint of a group", least_step=4)
        for rank in range(SIZE):
            running.leave(rank)
            assert members[rank][0].wait(60) == ExitCode.TERMINATED
        trainer.send_signal(signal.SIGKILL)
        trainer.wait()
        running.trainer()
        member = running.member(0)
        assert member[0].wait(120) == 0, member[1]
        ranks = running.ranks()
        assert ranks[STEPS - 1] == (0,)
        running.configs.pop()
        running.assert_whole([member], lambda step, _: ranks[step])


@pytest.mark.slow
def test_a_newcomer_that_comes_first_waits_for_the_group_to_begin(tmp_path):
    with Joined(tmp_path, before=64) as running:  # they would be done before it asks again
        _, said = running.trainer()
        newcomer = running.member(NEWCOMER)
        assert (
            "begins with ranks 0 to 1, and has not begun"
            in newcomer[1].first_event("trainer away; trying again")["reason"]
        )
        members = [running.member(rank) for rank in range(SIZE)]
        said.first_event("a member joins")
        running.gate.touch()
        for process, last in (*members, newcomer):
            assert process.wait(120) == 0, last
        ranks = running.ranks()
        running.assert_whole([*members, newcomer], lambda step, _: ranks[step])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flag", "sentence"),
    [
        ("training.optimizer.learning_rate=0.5", "trains with training.optimizer.learning_rate"),
        pytest.param("training.seed=99", "trains with training.seed", marks=pytest.mark.full),
        pytest.param("group.rank=3", "rank 3 is none of group 'line'; the ranks are 0 to 2", marks=pytest.mark.slow),
        pytest.param("group.name=other", "this trainer has no group 'other'", marks=pytest.mark.full),
    ],
)
def test_a_newcomer_that_cannot_join_is_refused_in_a_sentence(flag, sentence, tmp_path):
    with Joined(tmp_path) as running:
        _, said = running.trainer()
        for rank in range(SIZE):
            running.member(rank)
        said.first_event("checkpoint of a group", least_step=2)
        running.more[NEWCOMER] = [flag]
        process, last = running.member(NEWCOMER)
        assert process.wait(60) == ExitCode.REFUSED
        assert sentence in str(last)


@pytest.mark.full
def test_without_room_nobody_joins(tmp_path):
    with Joined(tmp_path) as running:
        running.group = group_of(SIZE)
        running.trainer()
        process, said = running.member(NEWCOMER)
        assert process.wait(60) == ExitCode.REFUSED
        assert "rank 2 is none of group 'line'; the ranks are 0 to 1" in str(said)
