"""The figures of a run are of the whole run, however many processes it had."""

import pytest

from edge_agent.sessions.resuming import Resume
from edge_agent.training.shutdown import Shutdown
from isthmus import run_training
from shared.errors import DataError, StoppedError
from tests.support.commands import MLP
from tests.support.running import Listening, edge_config, running_trainer
from tests.support.samples import FlatDigits

pytestmark = pytest.mark.usefixtures("one_thread")

STEPS, BATCH = 30, 32
TRAINING = [*MLP, "training.epochs=1", f"training.max_steps={STEPS}", "training.evaluate_every_epochs=0"]
TEST = 'data.test={factory="tests.support.samples:FlatDigits"}'


async def undisturbed(server, *flags):
    config = edge_config(*TRAINING, *flags, "checkpoints.location=none", f"trainer.address={server.address}")
    return (await run_training(config)).summary


def is_consistent(summary):
    return summary.samples_per_second == pytest.approx(summary.steps * BATCH / summary.seconds, rel=0.02)


@pytest.mark.first_case
@pytest.mark.parametrize("stops", [(10,), (5, 12, 20)])
async def test_a_run_that_was_stopped_sums_up_as_one_that_was_not(tmp_path, stops):
    async with running_trainer(f"checkpoints.location={tmp_path / 'trainer'}") as server:
        whole = await undisturbed(server)
        config = edge_config(
            *TRAINING, f"checkpoints.location={tmp_path / 'edge'}", f"trainer.address={server.address}"
        )
        seconds = []
        for number, stop in enumerate(stops):
            shutdown = Shutdown()

            def on_progress(now, stop=stop, shutdown=shutdown):
                if now.steps == stop:
                    seconds.append(now.seconds)
                    shutdown.drain()

            resume = Resume() if number else None
            with pytest.raises(StoppedError):
                await run_training(config, Listening(on_progress), resume=resume, shutdown=shutdown)
        figures = []
        done = await run_training(config, Listening(lambda now: figures.append(now.totals())), resume=Resume())
    assert seconds == sorted(seconds)
    assert done.summary.seconds > seconds[-1], "those before count"
    assert (done.summary.steps, done.summary.bytes_up) == (STEPS, whole.bytes_up)
    assert done.summary.bytes_down == whole.bytes_down
    assert is_consistent(done.summary)
    assert figures[-1]["bytes_up"] == whole.bytes_up, "a progress bar shows the same"


async def test_a_run_that_failed_goes_on_with_the_figures_of_its_checkpoint(tmp_path, monkeypatch):
    reads, count = FlatDigits.__getitem__, []

    def breaking(digits, index):
        count.append(index)
        if len(count) > 15 * BATCH:
            raise OSError("the card was pulled out")
        return reads(digits, index)

    async with running_trainer(f"checkpoints.location={tmp_path / 'trainer'}") as server:
        whole = await undisturbed(server)
        flags = [f"checkpoints.location={tmp_path / 'edge'}", "checkpoints.every_steps=4"]
        config = edge_config(*TRAINING, *flags, f"trainer.address={server.address}")
        monkeypatch.setattr(FlatDigits, "__getitem__", breaking)
        with pytest.raises(DataError):
            await run_training(config)
        monkeypatch.setattr(FlatDigits, "__getitem__", reads)
        done = await run_training(config, resume=Resume())
    assert (done.summary.steps, done.summary.bytes_up) == (STEPS, whole.bytes_up)
    assert is_consistent(done.summary)


@pytest.mark.slow
async def test_what_an_evaluation_found_before_the_run_was_stopped_is_in_its_summary(tmp_path):
    async with running_trainer(f"checkpoints.location={tmp_path / 'trainer'}") as server:
        flags = [TEST, f"checkpoints.location={tmp_path / 'edge'}", f"trainer.address={server.address}"]
        shutdown = Shutdown()

        def stop_when_evaluated(now):
            if now.accuracy is not None:
                shutdown.drain()

        longer = ["training.evaluate_every_epochs=1", "training.max_steps=50", "training.epochs=2"]
        config = edge_config(*TRAINING, *flags, *longer)
        with pytest.raises(StoppedError):
            await run_training(config, Listening(stop_when_evaluated), shutdown=shutdown)
        seen = []
        await run_training(config, Listening(lambda now: seen.append((now.steps, now.accuracy))), resume=Resume())
    assert seen[1][1] is not None, seen[:3]
