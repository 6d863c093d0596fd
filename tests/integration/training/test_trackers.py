"""Trackers, each with its real package: what was written is read back, and is the history of the run."""

import math
import struct
import sys

import pytest
from structlog.testing import capture_logs

from edge_agent.run import result_writer
from edge_agent.sessions.resuming import Resume
from edge_agent.training.shutdown import Shutdown
from isthmus import run_training
from shared.errors import ConfigError, StoppedError
from tests.support.experiments import MODELS
from tests.support.running import Listening, edge_config, running_trainer

pytestmark = pytest.mark.usefixtures("one_thread")

TRAINING = [
    *MODELS["mlp"],
    'data.test={factory="tests.support.samples:FlatDigits", kwargs={split="test"}}',
    "data.batch_size=64",
    "training.max_steps=24",
    "training.evaluate_every_steps=5",
    'training.metrics=["top5"]',
    "deployment.cut=1",
    "checkpoints.every_steps=4",
]
COLUMNS = ("train_loss", "test_loss", "accuracy", "learning_rate", "samples_per_second", "top5")


def number(row, name):
    return row.metrics.get(name) if name == "top5" else getattr(row, name)


async def tracked(tmp_path, tracker):
    """The history of a run that was stopped after 13 steps and resumed, under a tracker."""
    pytest.importorskip(tracker, reason=f"{tracker} is not installed: pip install 'isthmus[{tracker}]'")
    shutdown = Shutdown()
    output = tmp_path / "output"
    async with running_trainer(f"checkpoints.location={tmp_path / 'trainer'}") as server:
        config = edge_config(
            *TRAINING,
            f'training.trackers=["{tracker}"]',
            f"output.directory={output}",
            f"checkpoints.location={tmp_path / 'edge'}",
            f"trainer.address={server.address}",
        )
        stops = Listening(lambda now: now.steps == 13 and shutdown.drain())
        with capture_logs() as logs:
            with pytest.raises(StoppedError):
                await run_training(config, stops, result_writer(config), shutdown=shutdown)
            result = await run_training(config, write_result=result_writer(config), resume=Resume())
    assert not [line for line in logs if "callback" in line]
    return output, result


def assert_history(result, values):
    """values: of a column, by step."""
    for name in COLUMNS:
        expected = {row.step: number(row, name) for row in result.history if number(row, name) is not None}
        found = values(name)
        assert found.keys() == expected.keys(), name
        for step, value in expected.items():
            assert math.isclose(found[step], value, rel_tol=1e-6), (name, step)
    assert set(values("step_loss")) == {10, 20}


def offline_records(data):
    """The records in a file of W&B, as LevelDB's log has them: parts with a header of seven bytes, in blocks of 32 KiB."""
    place, block, parts = 7, 32768, b""
    while place + 7 <= len(data):
        if block - place % block < 7:
            place += block - place % block
        _checksum, length, kind = struct.unpack_from("<IHB", data, place)
        parts += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # a whole record, or the last part of one
            yield parts
            parts = b""


@pytest.mark.slow
async def test_tensorboard_has_the_history_once(tmp_path):
    output, result = await tracked(tmp_path, "tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(output / "tensorboard" / result.summary.session))
    read.Reload()
    assert_history(result, lambda name: {point.step: point.value for point in read.Scalars(name)})
    assert len(read.Scalars("accuracy")) == len({point.step for point in read.Scalars("accuracy")})
    (text,) = read.Tensors("settings/text_summary")[:1]
    assert b'"training.max_steps": "24"' in text.tensor_proto.string_val[0]


@pytest.mark.slow
async def test_mlflow_has_one_run_with_the_history(tmp_path):
    output, result = await tracked(tmp_path, "mlflow")
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{output / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("isthmus")
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.status, run.info.run_name) == ("FINISHED", result.summary.session)
    assert run.data.params["training.max_steps"] == "24"

    def values(name):
        return {point.step: point.value for point in client.get_metric_history(run.info.run_id, name)}

    assert_history(result, values)


@pytest.mark.slow
async def test_weights_and_biases_has_the_history_offline(tmp_path):
    output, result = await tracked(tmp_path, "wandb")
    from wandb.proto.wandb_internal_pb2 import Record

    points, configs = {}, []
    for file in sorted(output.glob("wandb/offline-run-*/*.wandb"), key=lambda path: path.stat().st_mtime):
        for data in offline_records(file.read_bytes()):
            record = Record.FromString(data)
            items = {item.nested_key[0]: item.value_json for item in record.history.item if item.nested_key}
            if "step" in items:
                step = int(items.pop("step"))
                for name, value in items.items():
                    points.setdefault(name, {})[step] = float(value)
            configs += [item for item in record.run.config.update if item.key == "training.max_steps"]
    assert_history(result, points.get)
    assert configs[0].value_json == '"24"'


@pytest.mark.parametrize("tracker", ["tensorboard", "mlflow", "wandb"])
async def test_one_that_is_not_installed_is_a_sentence_before_anything_is_dialled(tracker, tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == tracker or name == "torch.utils.tensorboard"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, tracker, None)  # as where it is not installed
    flags = [f'training.trackers=["{tracker}"]', f"output.directory={tmp_path}", "trainer.address=127.0.0.1:1"]
    with pytest.raises(ConfigError) as refused:
        await run_training(edge_config(*TRAINING, *flags))
    assert f"pip install 'isthmus[{tracker}]'" in str(refused.value)


@pytest.mark.slow
async def test_one_that_fails_later_is_said_once_and_the_run_goes_on(tmp_path):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed: pip install 'isthmus[tensorboard]'")
    (tmp_path / "tensorboard").write_text("where its folder would be")
    async with running_trainer() as server:
        flags = ['training.trackers=["tensorboard"]', f"output.directory={tmp_path}", "checkpoints.location=none"]
        with capture_logs() as logs:
            result = await run_training(edge_config(*TRAINING, *flags, f"trainer.address={server.address}"))
    assert result.summary.steps == 24
    (warning,) = [line for line in logs if "callback" in line]
    assert warning["callback"] == "tensorboard"
