"""The history of a run: the plain loop's rows, bit for bit, under every placement and however often it is interrupted."""

import asyncio
import csv
import json

import pytest
from typer.testing import CliRunner

from edge_agent.main import app
from edge_agent.run import result_writer
from edge_agent.sessions.resuming import Resume
from edge_agent.training.history import HISTORY, HistoryRow, read_history, write_history
from edge_agent.training.shutdown import Shutdown
from isthmus import run_training
from shared.errors import ConfigError, DataError, StoppedError
from tests.support import plain_history
from tests.support.experiments import MODELS
from tests.support.group_flags import SHARD, group_of, member
from tests.support.placement_kinds import addresses_of, flags_of, permitted, running_trainers
from tests.support.plain_history import plain_history as plain_rows
from tests.support.running import Listening, edge_config, running_trainer
from tests.support.samples import FlatDigits

pytestmark = pytest.mark.usefixtures("one_thread")

PER_EPOCH, STEPS = 22, 60
TEST = 'data.test={factory="tests.support.samples:FlatDigits", kwargs={split="test"}}'
TRAINING = [
    *MODELS["mlp"],
    TEST,
    "data.batch_size=64",
    "training.epochs=3",
    f"training.max_steps={STEPS}",
    "training.evaluate_every_epochs=2",
    "training.evaluate_every_steps=15",
    'training.schedule={name="cosine", every="step", warmup_steps=5}',
]
EVALUATED = {15, 30, 44, 45, 60}


@pytest.fixture(scope="module")
def expected():
    rows = plain_rows(edge_config(*TRAINING), EVALUATED.__contains__)
    assert [row.step for row in rows] == sorted({22, *EVALUATED}), "one epoch ends without an evaluation"
    return rows


def unsettled(config, *, resumed=False, stop=None):
    """A run in this process that stops at a step, if one is given."""
    shutdown = Shutdown()

    def on_progress(now):
        if now.steps == stop:
            shutdown.drain()

    resume = Resume() if resumed else None
    return run_training(config, Listening(on_progress), result_writer(config), resume=resume, shutdown=shutdown)


@pytest.mark.first_case
@pytest.mark.parametrize("kind", ["two workers", "chain of three", "labels stay", "inverted"])
async def test_the_rows_are_those_of_the_plain_loop(kind, tmp_path, expected):
    async with running_trainers() as servers:
        flags = [*TRAINING, *flags_of(kind, addresses_of(servers), tmp_path), *permitted(kind, "mlp")]
        result = await run_training(edge_config(*flags, "checkpoints.location=none"))
    assert plain_history.of(result.history) == expected
    last = result.history[-1]
    assert (last.test_loss, last.accuracy) == (result.summary.test_loss, result.summary.accuracy)
    assert (last.bytes_up, last.bytes_down) == (result.summary.bytes_up, result.summary.bytes_down)
    assert last.edge_blocks == result.summary.edge_blocks
    assert last.seconds <= result.summary.seconds


async def test_a_late_gradient_has_its_k_in_the_rows():
    async with running_trainer() as server:
        flags = [*TRAINING, "deployment.staleness=[[0, 0], [1, 2]]", 'deployment.codec="uniform8"', "deployment.cut=1"]
        config = edge_config(*flags, "checkpoints.location=none", f"trainer.address={server.address}")
        rows = (await run_training(config)).history
    assert [(row.staleness, row.bits, row.edge_blocks) for row in rows] == [(0, 8, 1)] * 2 + [(2, 8, 1)] * 4


@pytest.mark.parametrize("accumulate", [4])
async def test_an_epoch_ends_at_the_boundary_after_it(accumulate):
    async with running_trainer() as server:
        flags = [
            f"training.accumulate_batches={accumulate}",
            "training.evaluate_every_steps=15",
            "checkpoints.location=none",
        ]
        rows = (await run_training(edge_config(*TRAINING, *flags, f"trainer.address={server.address}"))).history
    assert [row.step for row in rows] == [16, 24, 32, 44, 48, 60]
    assert [row.epoch for row in rows] == [1, 1, 2, 2, 3, 3]


async def test_a_run_that_is_stopped_and_one_that_fails_go_on_in_the_same_rows(tmp_path, expected, monkeypatch):
    reads, count = FlatDigits.__getitem__, []

    def breaking(digits, index):
        count.append(index)
        if len(count) == 27 * 64:  # more than a row after the newest checkpoint
            raise OSError("the card was pulled out")
        return reads(digits, index)

    output = tmp_path / "output"
    async with running_trainer(f"checkpoints.location={tmp_path / 'trainer'}") as server:
        kept = [f"checkpoints.location={tmp_path / 'edge'}", f"output.directory={output}", "checkpoints.every_steps=10"]
        config = edge_config(*TRAINING, *kept, f"trainer.address={server.address}")
        with pytest.raises(StoppedError):
            await unsettled(config, stop=24)
        assert plain_history.of(read_history(output)) == expected[:2]
        monkeypatch.setattr(FlatDigits, "__getitem__", breaking)
        with pytest.raises(DataError):
            await unsettled(config, resumed=True)
        monkeypatch.setattr(FlatDigits, "__getitem__", reads)
        (output / HISTORY).write_text("torn by a power failure")
        result = await unsettled(config, resumed=True)
    assert plain_history.of(result.history) == expected
    assert read_history(output) == result.history
    summary = json.loads((output / "summary.json").read_text())
    assert [HistoryRow(**row) for row in summary["history"]] == result.history
    assert [row.seconds for row in result.history] == sorted(row.seconds for row in result.history)


async def test_rows_are_in_the_file_as_the_run_goes(tmp_path, expected):
    seen = {}
    async with running_trainer() as server:
        flags = [*TRAINING, "checkpoints.location=none", f"output.directory={tmp_path}", "deployment.cut=1"]
        config = edge_config(*flags, f"trainer.address={server.address}")

        def on_progress(now):
            if now.steps in (23, 46):
                while not (tmp_path / HISTORY).exists() or len(read_history(tmp_path)) < len(now.history):
                    pass  # another thread writes it
                seen[now.steps] = read_history(tmp_path)

        await run_training(config, Listening(on_progress), result_writer(config))
    assert [plain_history.of(rows) for rows in seen.values()] == [expected[:2], expected[:5]]


async def test_each_member_of_a_group_has_rows_of_its_own_losses():
    async with running_trainer(*group_of(2)) as server:
        configs = [
            member(rank, server, size=2, more=[SHARD, TEST, "training.evaluate_every_steps=4"]) for rank in range(2)
        ]
        results = await asyncio.gather(*map(run_training, configs))
    first, second = (result.history for result in results)
    assert [row.step for row in first] == [row.step for row in second] == [4, 6]
    assert all(row.test_loss is not None and row.train_loss is not None for row in (*first, *second))
    assert [row.test_loss for row in first] == [row.test_loss for row in second], "they have the same weights"
    assert [row.train_loss for row in first] != [row.train_loss for row in second], "of other samples"


async def test_a_member_that_comes_back_goes_on_in_the_rows_of_its_file(tmp_path):
    """It is stopped twice, with a row and some steps behind it, and the other one waits."""
    async with running_trainer(*group_of(2)) as server:
        more = [SHARD, TEST, "training.evaluate_every_steps=2", "training.max_steps=12"]
        configs = [
            member(rank, server, size=2, more=[*more, f"output.directory={tmp_path / str(rank)}"]) for rank in range(2)
        ]
        other = asyncio.create_task(run_training(configs[0], write_result=result_writer(configs[0])))
        for stop in (3, 7):
            with pytest.raises(StoppedError):
                await unsettled(configs[1], stop=stop)
            assert read_history(tmp_path / "1")[-1].step >= stop - 1
        back, stayed = await asyncio.gather(unsettled(configs[1]), other)
        rows = back.history
        assert [row.step for row in rows] == [row.step for row in stayed.history] == list(range(2, 13, 2))
        assert [row.test_loss for row in rows] == [row.test_loss for row in stayed.history]
        assert read_history(tmp_path / "1") == rows
        for name in ("seconds", "samples", "bytes_up", "bytes_down"):
            values = [getattr(row, name) for row in rows]
            assert values == sorted(set(values)), name
        again = await asyncio.gather(*(run_training(config, write_result=result_writer(config)) for config in configs))
    assert [row.step for row in again[1].history] == list(range(2, 13, 2)), "of another training of the group"
    assert again[1].history[0].seconds < rows[-1].seconds


async def test_the_history_of_an_earlier_result_is_kept_with_it(tmp_path):
    async with running_trainer() as server:
        flags = [
            *TRAINING,
            "checkpoints.location=none",
            f"output.directory={tmp_path}",
            f"trainer.address={server.address}",
        ]
        results = []
        for seed in (1, 2, 3):
            config = edge_config(*flags, "training.max_steps=5", f"training.seed={seed}")
            results.append(await run_training(config, write_result=result_writer(config)))
    assert read_history(tmp_path) == results[-1].history
    aside = sorted((tmp_path / "earlier").iterdir())
    assert [read_history(folder) for folder in aside] == [result.history for result in results[:2]]
    assert all((folder / "model.safetensors").exists() for folder in aside)


async def test_the_command_shows_a_table_and_draws(tmp_path):
    async with running_trainer() as server:
        flags = [
            *TRAINING,
            "checkpoints.location=none",
            f"output.directory={tmp_path}",
            f"trainer.address={server.address}",
        ]
        config = edge_config(*flags, "training.max_steps=25")
        result = await run_training(config, write_result=result_writer(config))
    done = CliRunner().invoke(
        app, ["history", str(tmp_path), f"--png={tmp_path / 'history.png'}"], env={"COLUMNS": "80"}
    )
    assert done.exit_code == 0, done.exception
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines[1:-1]] == [str(row.step) for row in result.history] == ["15", "22", "25"]
    assert max(map(len, lines[:-1])) <= 80
    assert lines[2].split()[3:5] == ["-", "-"], "an epoch without an evaluation"
    assert (tmp_path / "history.png").stat().st_size > 1000


def test_a_metric_has_a_column_of_its_own(tmp_path, expected):
    row = HistoryRow(
        **expected[-1]._asdict(),
        edge_blocks=2,
        staleness=0,
        bits=32,
        seconds=1.5,
        bytes_up=1,
        bytes_down=2,
        samples_per_second=3.0,
    )
    rows = [row, row._replace(metrics={"top5": 0.1 + 0.2, "mine:f, as it is": 1.0})]
    write_history(tmp_path, rows)
    assert read_history(tmp_path) == rows
    first, second = csv.DictReader((tmp_path / HISTORY).read_text().splitlines())
    assert (first["top5"], second["top5"]) == ("", "0.30000000000000004")
    shown = CliRunner().invoke(app, ["history", str(tmp_path)], env={"COLUMNS": "80"}).stdout.splitlines()
    assert shown[0].split()[5:8] == ["top5", "mine:f,", "as"], "no name is cut"
    assert shown[2].split()[-7:] == ["0", "32", "1", "B", "2", "B", "3"], "nor a number"


@pytest.mark.parametrize(
    ("text", "said"), [(None, "cannot be read"), ("a,b\n1,2\n", "other columns"), ("", "is no history")]
)
def test_what_is_no_history_is_named(tmp_path, text, said):
    if text is not None:
        (tmp_path / HISTORY).write_text(text)
    with pytest.raises(ConfigError, match=said):
        read_history(tmp_path)
