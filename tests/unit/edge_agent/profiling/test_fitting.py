"""Two kills of one run: where they count as one cause, and what is named that fits into the memory that is left."""

import re
from types import SimpleNamespace

import pytest

from edge_agent.experiment.experiment import Experiment
from edge_agent.profiling.fitting import check_kills
from edge_agent.sessions.kills import Kill
from shared.errors import UnfitError
from tests.support.running import edge_config

pytestmark = pytest.mark.usefixtures("one_thread")
MIB = 1024**2


class Stored:
    """A stored session whose processes were killed so, the last first."""

    def __init__(self, *kills):
        self._kills = kills
        self.record = SimpleNamespace(session_id="f" * 32)
        self.is_forgotten = False

    def kills(self):
        return list(self._kills)

    def forget_kills(self):
        self.is_forgotten = True


@pytest.fixture(scope="module")
def experiment():
    return Experiment(edge_config("data.batch_size=512", "model.kwargs={width=64}", "deployment.cut=3"))


@pytest.mark.parametrize(
    ("kills", "ends"),
    [
        ([], False),
        ([Kill(41, True)], False),
        ([Kill(41, True), Kill(41, True)], True),
        ([Kill(41, False), Kill(42, False)], True),  # the count may lack the step under way
        (
            [Kill(20, False), Kill(41, False)],
            False,
        ),  # by other reasons: a kill of a device that works comes at any step
        ([Kill(20, True), Kill(41, True)], True),
        ([Kill(60, True), Kill(41, True)], False),  # it gets further each time
    ],
)
def test_a_run_ends_where_its_second_process_was_killed_at_the_same_step(kills, ends, experiment):
    stored = Stored(*kills)
    if ends:
        with pytest.raises(UnfitError, match="twice"):
            check_kills(experiment, stored)
    else:
        assert check_kills(experiment, stored) == (kills[0] if kills else None)
    assert stored.is_forgotten is ends, "the next process tries again"


def named(experiment, monkeypatch, free_bytes):
    monkeypatch.setattr("edge_agent.profiling.fitting.available_bytes", lambda: free_bytes)
    with pytest.raises(UnfitError) as ended:
        check_kills(experiment, Stored(Kill(3, True), Kill(3, True)))
    return str(ended.value)


def test_the_batch_grows_with_the_memory_and_stays_below_the_one_that_was_killed(experiment, monkeypatch):
    batches = []
    for free_bytes in (60 * MIB, 80 * MIB, 100 * MIB, 8192 * MIB):
        said = named(experiment, monkeypatch, free_bytes)
        batches.append(int(re.search(r"data\.batch_size = (\d+)", said)[1]))
    assert 0 < batches[0] < batches[1] < batches[2] <= batches[3] == 256
    assert "something else may end it" in said


def test_an_earlier_cut_is_named_where_it_fits(experiment, monkeypatch):
    assert "deployment.cut = 2, after" in named(experiment, monkeypatch, 8192 * MIB)
    assert "deployment.cut = 1, after `edge-agent forget " in named(experiment, monkeypatch, 120 * MIB)
    said = named(experiment, monkeypatch, 10 * MIB)
    assert "begin again with a smaller model, after" in said
