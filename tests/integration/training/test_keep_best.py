"""The best weights of a run are bit for bit those that were evaluated, wherever its blocks were and however often it was
interrupted."""

import json

import pytest
from safetensors.torch import load_file, save_file
from structlog.testing import capture_logs

from edge_agent.run import result_writer
from edge_agent.sessions.resuming import Resume
from edge_agent.sessions.stored_session import sessions_folder
from edge_agent.training.history import read_history
from edge_agent.training.shutdown import Shutdown
from isthmus import run_training
from shared.errors import ConfigError, DataError, StoppedError, StorageError
from tests.support.placement_kinds import addresses_of, flags_of, permitted, running_trainers
from tests.support.plain import assert_same_bits, plain_state
from tests.support.running import Listening, cut_at, edge_config, running_trainer
from tests.support.samples import FlatDigits

pytestmark = pytest.mark.usefixtures("one_thread")

STEPS = 70
TRAINING = [
    'model.factory="shared.model.zoo:mlp"',
    "model.kwargs={depth=4}",
    'data.train={factory="tests.support.samples:FlatDigits"}',
    'data.test={factory="tests.support.samples:FlatDigits", kwargs={split="test"}}',
    "data.batch_size=64",
    "training.epochs=10",
    f"training.max_steps={STEPS}",
    "training.evaluate_every_steps=5",
    'training.optimizer={name="sgd", learning_rate=0.5, momentum=0.5}',
]
"""Steps that are too large, so that losses go up and down."""
BEST = "training.keep_best={}"


def best_of(rows):
    """The step of the row with the smallest loss."""
    return min((row for row in rows if row.test_loss is not None), key=lambda row: row.test_loss).step


def weights_at(step, *flags):
    return plain_state(edge_config(*TRAINING, *flags, f"training.max_steps={step}"))


@pytest.mark.first_case
@pytest.mark.parametrize("kind", ["two workers", "chain of three", "inverted", "labels stay"])
async def test_they_are_the_weights_of_the_evaluation(kind, tmp_path):
    async with running_trainers(tmp_path / "trainers") as servers:
        flags = [*TRAINING, BEST, *flags_of(kind, addresses_of(servers), tmp_path), *permitted(kind, "mlp")]
        out = tmp_path / "out"
        config = edge_config(*flags, f"checkpoints.location={tmp_path / 'edge'}", f"output.directory={out}")
        result = await run_training(config, write_result=result_writer(config))
    best = best_of(result.history)
    assert 5 < best < STEPS, "the first and the last are other cases"
    assert_same_bits(weights_at(best), load_file(out / "best.safetensors"))
    assert_same_bits(weights_at(best), dict(result.best))
    assert_same_bits(weights_at(STEPS), load_file(out / "model.safetensors"))
    assert sessions_folder(config).folders() == []


@pytest.mark.parametrize("kind", ["samples divided"])
async def test_shared_blocks_have_the_weights_of_a_run_that_ends_there(kind, tmp_path):
    async with running_trainers(tmp_path / "trainers") as servers:
        flags = [*TRAINING, BEST, *flags_of(kind, addresses_of(servers), tmp_path), *permitted(kind, "mlp")]
        flags.append(f"checkpoints.location={tmp_path / 'edge'}")
        result = await run_training(edge_config(*flags))
        best = best_of(result.history)
        shorter = await run_training(edge_config(*flags, f"training.max_steps={best}"))
    assert 5 < best < STEPS
    assert_same_bits(shorter.module.state_dict(), dict(result.best))


async def test_the_last_weights_may_be_the_best(tmp_path):
    async with running_trainer(f"checkpoints.location={tmp_path / 'trainer'}") as server:
        flags = [*TRAINING, BEST, "training.max_steps=10", f"checkpoints.location={tmp_path / 'edge'}"]
        result = await run_training(edge_config(*flags, f"trainer.address={server.address}"))
    assert best_of(result.history) == result.summary.best_step == 10
    assert_same_bits(result.module.state_dict(), dict(result.best))


async def test_where_no_evaluation_has_a_number_one_warning_says_that_none_are_the_best(tmp_path):
    out = tmp_path / "out"
    unknown = 'data.test={factory="tests.support.samples:NotANumber", kwargs={split="test"}}'
    async with running_trainer(f"checkpoints.location={tmp_path / 'trainer'}") as server:
        flags = [*TRAINING, BEST, unknown, "training.max_steps=10", f"output.directory={out}"]
        config = edge_config(*flags, f"checkpoints.location={tmp_path / 'edge'}", f"trainer.address={server.address}")
        with capture_logs() as logs:
            result = await run_training(config, write_result=result_writer(config))
    assert result.best is result.summary.best_step is None
    assert not (out / "best.safetensors").exists()
    told = [(entry["log_level"], entry["metric"]) for entry in logs if "kept as the best" in entry["event"]]
    assert told == [("warning", "loss")]


async def test_weights_with_late_gradients_and_a_lossy_codec_are_those_that_were_evaluated(tmp_path):
    async with running_trainer(f"checkpoints.location={tmp_path / 'trainer'}") as server:
        late = ["deployment.staleness=2", "deployment.codec=uniform8", "deployment.cut=2"]
        late.append('training.optimizer={name="sgd", learning_rate=0.2}')  # with more, late gradients may diverge
        kept = [f"checkpoints.location={tmp_path / 'edge'}", f"trainer.address={server.address}"]
        config = edge_config(*TRAINING, BEST, *late, *kept)
        result = await run_training(config)
        row = next(row for row in result.history if row.step == result.summary.best_step)
        again = [f"training.start_from={saved(result.best, tmp_path)}", "training.max_steps=1", *late, *kept]
        frozen = 'training.optimizer={name="sgd", learning_rate=1e-30}'
        evaluated = await run_training(edge_config(*TRAINING, *again, frozen))
    assert row.step == best_of(result.history)
    assert (evaluated.summary.test_loss, evaluated.summary.accuracy) == (row.test_loss, row.accuracy)


def saved(state, folder):
    """A file of these weights."""
    save_file(dict(state), folder / "best.safetensors")
    return folder / "best.safetensors"


async def test_moves_of_the_cut_stops_and_failures_change_no_bit(tmp_path, monkeypatch):
    """The weights of a step that comes once more are kept once more, and those before it are still there."""
    reads, count = FlatDigits.__getitem__, []
    out = tmp_path / "out"
    deployers = []

    def breaking(digits, index):
        count.append(index)
        if len(count) == 64 * 70:
            raise OSError("the card was pulled out")
        return reads(digits, index)

    async with running_trainer(f"checkpoints.location={tmp_path / 'trainer'}") as server:
        flags = [f"checkpoints.location={tmp_path / 'edge'}", "checkpoints.every_steps=13", f"output.directory={out}"]
        config = edge_config(*TRAINING, BEST, *flags, "deployment.cut=1", f"trainer.address={server.address}")

        def run(*, stop=None, cut=None, resumed=True):
            shutdown = Shutdown()

            def on_progress(now):
                if cut is not None and now.steps == cut[0]:
                    cut_at(deployers[-1], cut[1])
                if now.steps == stop:
                    shutdown.drain()

            listening = Listening(on_progress, deployers.append)
            resume = Resume() if resumed else None
            return run_training(config, listening, result_writer(config), resume=resume, shutdown=shutdown)

        with pytest.raises(StoppedError):
            await run(stop=23, cut=(8, 3), resumed=False)
        monkeypatch.setattr(FlatDigits, "__getitem__", breaking)
        with pytest.raises(DataError):
            await run(cut=(30, 2))
        monkeypatch.setattr(FlatDigits, "__getitem__", reads)
        reached = read_history(out)[-1].step
        result = await run(cut=(60, 4))
    assert 23 < reached < STEPS
    best = best_of(result.history)
    assert best == 50
    assert_same_bits(weights_at(best), load_file(out / "best.safetensors"))
    assert_same_bits(weights_at(STEPS), load_file(out / "model.safetensors"))


async def test_weights_that_were_best_at_a_checkpoint_outlive_better_ones_that_are_lost(tmp_path):
    async with running_trainer(f"checkpoints.location={tmp_path / 'trainer'}") as server:
        flags = [*TRAINING, BEST, f"checkpoints.location={tmp_path / 'edge'}", f"trainer.address={server.address}"]
        flags.append("checkpoints.every_steps=25")
        seen = []

        def failing(now):
            if now.steps == 43:
                seen.extend(now.history)
                raise StorageError("this process dies")

        with pytest.raises(StorageError):
            await run_training(edge_config(*flags), Listening(failing))
        result = await run_training(edge_config(*flags, "training.max_steps=27"), resume=Resume())
    assert best_of(seen) == 40
    assert best_of([row for row in seen if row.step <= 25]) == 20
    assert best_of(result.history) == 20, "those after step 25 were not done"
    assert_same_bits(weights_at(20), dict(result.best))


async def test_a_result_that_was_not_written_has_them_too(tmp_path):
    def failing(_result):
        raise StorageError("the disk is full")

    out = tmp_path / "out"
    async with running_trainer(f"checkpoints.location={tmp_path / 'trainer'}") as server:
        flags = [*TRAINING, BEST, f"checkpoints.location={tmp_path / 'edge'}", f"output.directory={out}"]
        config = edge_config(*flags, f"trainer.address={server.address}")
        with pytest.raises(StorageError):
            await run_training(config, write_result=failing)
    await run_training(config, write_result=result_writer(config), resume=Resume())
    best = best_of(read_history(out))
    assert_same_bits(weights_at(best), load_file(out / "best.safetensors"))
    assert json.loads((out / "summary.json").read_text())["best_step"] == best


async def test_the_best_of_an_earlier_result_is_kept_with_it(tmp_path):
    async with running_trainer(f"checkpoints.location={tmp_path / 'trainer'}") as server:
        flags = [*TRAINING, f"checkpoints.location={tmp_path / 'edge'}", f"output.directory={tmp_path / 'out'}"]
        flags += ["training.max_steps=10", f"trainer.address={server.address}"]
        for more in ([BEST], []):
            config = edge_config(*flags, *more)
            await run_training(config, write_result=result_writer(config))
    (aside,) = (tmp_path / "out" / "earlier").iterdir()
    assert (aside / "best.safetensors").exists()
    assert not (tmp_path / "out" / "best.safetensors").exists()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (['training.keep_best={metric="f1"}'], 'keep_best.metric is "f1", which is not computed'),
        (["checkpoints.location=none"], "the weights have no place"),
    ],
)
def test_what_cannot_be_kept_is_refused_in_a_sentence(flags, said):
    with pytest.raises(ConfigError, match=said):
        edge_config(*TRAINING, BEST, *flags)
