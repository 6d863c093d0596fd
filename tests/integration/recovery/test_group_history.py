"""The rows of a group's member are those of an undisturbed group, whoever is killed between two of them."""

import asyncio
import signal

import pytest

from edge_agent.training.history import read_history
from isthmus import run_training
from tests.support import plain_history
from tests.support.group_flags import SHARD, group_of, member
from tests.support.running import running_trainer
from tests.support.running_group import SIZE, SLOWLY, STEPS, Running

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.slow]


CUT = "deployment.cut=1"


FALLING = 'training.schedule={name="plateau", patience=0, threshold=0.9, factor=0.5}'
"""Has the rate fall at each evaluation but the first, which the rows between tell, too."""


def evaluating(rank):
    tested = f'data.test={{factory="tests.support.samples:SomeDigits", kwargs={{rank={rank}}}}}'
    return [tested, "training.evaluate_every_steps=10", FALLING]


def undisturbed(of_rank):
    """The rows of each member of a group that nothing disturbs. of_rank: function from a rank to further flags."""

    async def rows():
        async with running_trainer(*group_of(SIZE)) as server:
            more = [SHARD, "compute.threads=1", f"training.max_steps={STEPS}"]
            configs = [member(rank, server, size=SIZE, more=[*more, *of_rank(rank)]) for rank in range(SIZE)]
            return [result.history for result in await asyncio.gather(*map(run_training, configs))]

    return [plain_history.of(history) for history in asyncio.run(rows())]


@pytest.fixture(scope="module")
def expected():
    """The rows of each member of a group that evaluates."""
    found = undisturbed(evaluating)
    assert [row.step for row in found[0]] == [10, 20, 22, 30, 40]
    rates = [row.learning_rate for row in found[0]]
    assert rates == [rates[0] * share for share in (1, 1, 0.5, 0.25, 0.125)]
    return found


def assert_rows(running, members, expected):
    running.assert_whole(members)
    for rank, rows in enumerate(expected):
        folder = running.folder / f"member-{rank}"
        assert plain_history.of(read_history(folder)) == rows
        assert not [path for path in folder.iterdir() if path.name.startswith(".")], (
            "nothing is left for another process"
        )


def slowly_evaluating():
    return {rank: [*evaluating(rank), *SLOWLY[rank]] for rank in range(SIZE)}


@pytest.mark.parametrize(
    ("point", "nth"),
    [
        ("shared.execution.blocks:PlacedBlocks.learn", 14),
        ("shared.runtime.block_form:BlockForm.encode", 50),
        ("shared.execution.blocks:PlacedBlocks.take_weights", 55),
        ("edge_agent.observability.history_keeper:HistoryKeeper._add", 2),
        ("edge_agent.observability.history_keeper:HistoryKeeper._show", 2),
        ("edge_agent.observability.history_keeper:HistoryKeeper._show", 3),
        ("edge_agent.training.history:HistoryFile.hold", 2),
        ("edge_agent.training.history:HistoryFile.hold", 3),
    ],
)
def test_a_killed_member_that_comes_back_has_the_losses_and_samples_of_all_steps(point, nth, tmp_path, expected):
    """Before it has the loss of a step, while its gradients leave, once others have gone on with them, and before the row of an
    evaluation or of an epoch is in the file."""
    with Running(tmp_path, more={rank: evaluating(rank) for rank in range(SIZE)}) as running:
        running.trainer()
        other = running.member(0)
        killed = running.member_killed_at(point, 1, nth)
        assert killed.wait(60) == -signal.SIGKILL
        assert_rows(running, [other, running.member(1)], expected)


@pytest.mark.parametrize(
    "point",
    [
        "edge_agent.observability.history_keeper:HistoryKeeper._show",
        "edge_agent.training.history:HistoryFile.hold",
    ],
)
def test_the_row_of_an_epoch_for_which_no_step_waits_is_there_after_a_kill(point, tmp_path):
    with Running(tmp_path) as running:
        running.trainer()
        other = running.member(0)
        assert running.member_killed_at(point, 1).wait(60) == -signal.SIGKILL
        expected = undisturbed(lambda _rank: [])
        assert [row.step for row in expected[0]] == [22, 40]
        assert_rows(running, [other, running.member(1)], expected)


@pytest.mark.parametrize(
    ("point", "has_results"),
    [
        ("edge_agent.training.result:TrainingResult.write", False),
        ("edge_agent.training.training_loop:TrainingLoop.close", True),
    ],
)
def test_a_member_that_is_killed_around_its_results_has_them_once_and_whole(point, has_results, tmp_path, expected):
    with Running(tmp_path, more={rank: evaluating(rank) for rank in range(SIZE)}) as running:
        running.trainer()
        other, folder = running.member(0), tmp_path / "member-1"
        assert running.member_killed_at(point, 1).wait(60) == -signal.SIGKILL
        before = {path.name: path.stat().st_mtime_ns for path in folder.glob("[!.]*")}
        assert ("summary.json" in before) is has_results
        assert_rows(running, [other, running.member(1)], expected)
    assert not (folder / "earlier").exists()
    if has_results:
        assert before.items() <= {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}.items()


@pytest.mark.parametrize("killed", ["member", "trainer"])
def test_rows_are_whole_wherever_the_group_goes_on(killed, tmp_path, expected):
    with Running(tmp_path, more=slowly_evaluating()) as running:
        assert_rows(running, running.killed_and_back(killed, 14), expected)


@pytest.mark.parametrize("point", ["backward", "take_weights"])
def test_a_killed_member_with_a_cut_lacks_one_step_at_most(point, tmp_path, expected):
    """The trainer computes the loss, and the device hears it after its gradients have left."""
    with Running(tmp_path, more={rank: [*flags, CUT] for rank, flags in slowly_evaluating().items()}) as running:
        running.trainer()
        other = running.member(0)
        killed = running.member_killed_at(f"shared.execution.blocks:PlacedBlocks.{point}", 1, 14)
        assert killed.wait(60) == -signal.SIGKILL
        running.assert_whole([other, running.member(1)])
    per_step = expected[1][0].samples // expected[1][0].step
    rows = plain_history.of(read_history(tmp_path / "member-1"))
    lacking = {right.samples - row.samples for right, row in zip(expected[1], rows, strict=True)}
    assert lacking <= {0, per_step}
    assert [(row.step, row.test_loss) for row in rows] == [(right.step, right.test_loss) for right in expected[1]]
    assert all(row.train_loss is not None for row in rows)
