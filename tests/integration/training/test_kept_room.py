"""Room for the features that are kept of all samples: what is counted before the first step bounds what real runs take."""

import pytest
from structlog.testing import capture_logs

from benchmarks.memory import held_and_resident
from benchmarks.support.processes import trainer_process
from edge_agent.experiment.experiment import Experiment
from edge_agent.experiment.placement_report import report_on
from edge_agent.sessions.resuming import Resume
from edge_agent.sessions.room import session_bytes
from edge_agent.sessions.stored_session import sessions_folder, stored_sessions
from edge_agent.training.shutdown import Shutdown
from isthmus import run_training
from shared.errors import StoppedError
from shared.execution.recalled import Recalled
from shared.training.copied_features import MOST_COPIES
from tests.integration.training import test_changes, test_recall, test_recall_alone
from tests.support.running import Listening, edge_config, running_trainer

pytestmark = pytest.mark.usefixtures("one_thread")

CHANGES = [*test_changes.FLAGS, test_changes.CHANGES]
KEPT_BYTES = test_changes.SAMPLES * (test_changes.FEATURE_BYTES + 8)


def bytes_in(folder):
    """Count the bytes of the files in a folder, those that are being written left out."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


async def most_on_disk(config, folder):
    """Train, and return the most bytes that the folder of the agent's sessions has had after a step."""
    seen = [0]

    def look(_statistics):
        try:
            seen[0] = max(seen[0], bytes_in(folder / "edge-agent"))
        except FileNotFoundError:  # one was removed meanwhile: the next step sees what is left
            return

    await run_training(config, Listening(look))
    return seen[0]


@pytest.mark.first_case
@pytest.mark.parametrize(("keep", "every_steps"), [(1, 1), (3, 1), (3, 5), (1, 16)])
async def test_checkpoints_with_features_take_no_more_disk_than_was_counted(tmp_path, keep, every_steps):
    async with running_trainer() as server:
        config = edge_config(
            *CHANGES,
            f"checkpoints.location={tmp_path}",
            f"checkpoints.keep={keep}",
            f"checkpoints.every_steps={every_steps}",
            f"trainer.address={server.address}",
        )
        most = await most_on_disk(config, tmp_path)
    counted = session_bytes(Experiment(config))
    assert KEPT_BYTES < most <= counted
    without = edge_config(*test_changes.FLAGS, f"checkpoints.location={tmp_path}", f"checkpoints.keep={keep}")
    assert counted == session_bytes(Experiment(without)) + (keep + 2) * KEPT_BYTES


async def test_features_that_the_device_recalls_take_the_disk_that_was_counted(tmp_path):
    config = edge_config(*test_recall_alone.ALONE, f"checkpoints.location={tmp_path}")
    most = await most_on_disk(config, tmp_path)
    kept = test_recall_alone.SAMPLES * test_recall_alone.RECORD_BYTES
    counted = session_bytes(Experiment(config))
    assert kept < most <= counted
    without = [flag for flag in test_recall_alone.ALONE if flag != test_recall_alone.RECALL]
    assert counted == kept + session_bytes(Experiment(edge_config(*without, f"checkpoints.location={tmp_path}")))


@pytest.mark.parametrize("lacking", [0, 1])
async def test_features_that_are_on_the_disk_already_need_no_more_room(tmp_path, monkeypatch, lacking):
    shutdown = Shutdown()
    config = edge_config(*test_recall_alone.ALONE, f"checkpoints.location={tmp_path}")

    def stop(statistics):
        if statistics.steps == test_recall_alone.STOPPED_AT:
            shutdown.drain()

    with monkeypatch.context() as killed:
        killed.setattr(Recalled, "close", lambda _recalled: None)  # as of a process that is killed
        with pytest.raises(StoppedError):
            await run_training(config, Listening(stop), shutdown=shutdown)
    ((record, *_),) = stored_sessions(sessions_folder(config))
    there = bytes_in(tmp_path / "edge-agent")
    assert there > test_recall_alone.SAMPLES * test_recall_alone.RECORD_BYTES
    free = session_bytes(Experiment(config)) - there - lacking
    monkeypatch.setattr("edge_agent.sessions.room.free_bytes_at", lambda _path: free)
    with capture_logs() as logs:
        await run_training(config, resume=Resume(record.session_id))
    assert sum("may become full" in entry["event"] for entry in logs) == lacking


def test_both_ends_report_the_memory_of_features_and_of_their_copies():
    reports = [report_on(Experiment(edge_config(*flags))).memory for flags in (test_changes.FLAGS, CHANGES)]
    for plain, keeping in zip(*reports, strict=True):
        assert (plain.kept, keeping.kept) == (0, MOST_COPIES * KEPT_BYTES)
        assert keeping.total == plain.total + keeping.kept


def test_a_worker_that_recalls_reports_the_memory_of_a_flag_of_each_sample():
    alone = report_on(Experiment(edge_config(*test_recall_alone.ALONE))).memory
    assert [one.kept for one in alone] == [test_recall_alone.SAMPLES]
    device, trainer = report_on(Experiment(edge_config(*test_recall.FLAGS, test_recall.RECALL))).memory
    assert (device.kept, trainer.kept) == (0, test_recall.SAMPLES)


@pytest.mark.slow
def test_features_take_no_more_memory_than_was_counted():
    """Checkpoints fold increments here, which takes the most."""
    samples, width, batch_size = 1400, 64, 32
    each = width * 8 * 8 * 4
    features = samples * each
    flags = [
        f'data.train={{factory="tests.support.samples:Pictures", kwargs={{count={samples}}}}}',
        f"model.kwargs={{width={width}, blocks=2}}",
        'model.frozen=["stem"]',
        'model.frozen_mode="eval"',
        f"data.batch_size={batch_size}",
        "training.epochs=5",
        "deployment.cut=1",
        "deployment.codec=uniform8",
        "checkpoints.every_steps=20",
    ]
    with trainer_process("compute.threads=1", "compute.device=cpu") as address:
        plain, keeping = (held_and_resident(address, [*flags, *more])[0] for more in ([], [test_changes.CHANGES]))
    some_batches = 8 * batch_size * each
    assert (MOST_COPIES - 1) * features < keeping - plain <= MOST_COPIES * features + some_batches


@pytest.mark.parametrize("lacking", [0, 1])
async def test_memory_that_is_short_for_features_is_warned_of_before_the_first_step(monkeypatch, lacking):
    free = MOST_COPIES * KEPT_BYTES - lacking
    monkeypatch.setattr("edge_agent.profiling.fitting.available_bytes", lambda: free)
    async with running_trainer() as server:
        with capture_logs() as logs:
            await run_training(edge_config(*CHANGES, "training.max_steps=2", f"trainer.address={server.address}"))
    events = [entry["event"] for entry in logs]
    warned = [event for event in events if "may not fit into memory" in event]
    assert len(warned) == lacking
    assert all(events.index(event) < events.index("session opened") for event in warned)
