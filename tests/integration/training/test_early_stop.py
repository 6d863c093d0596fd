"""A run that ends early ends with the bits of one that was told to be so short, however often it is interrupted."""

import json
from itertools import count

import pytest

from edge_agent.run import result_writer
from edge_agent.sessions.resuming import Resume
from edge_agent.sessions.stored_session import sessions_folder
from edge_agent.training.shutdown import Shutdown
from isthmus import run_training
from shared.errors import ConfigError, StoppedError, StorageError
from tests.support import plain_history
from tests.support.placement_kinds import addresses_of, flags_of, permitted, running_trainers
from tests.support.plain import assert_same_bits, plain_state
from tests.support.running import Listening, edge_config, running_trainer
from tests.support.samples import FlatDigits

pytestmark = pytest.mark.usefixtures("one_thread")

MLP = ['model.factory="shared.model.zoo:mlp"', "model.kwargs={depth=4}"]
TEST = 'data.test={factory="tests.support.samples:FlatDigits", kwargs={split="test"}}'
TRAINING = [
    *MLP,
    'data.train={factory="tests.support.samples:FlatDigits"}',
    TEST,
    "data.batch_size=64",
    "training.epochs=10",
    "training.evaluate_every_steps=5",
    'training.optimizer={name="sgd", learning_rate=0.5}',
]
"""Steps that are too large, so that losses go up and down."""
ENDS = ['training.early_stop={metric="loss", patience=3, min_delta=0.01}']


@pytest.fixture(scope="module")
def rows():
    """The rows of a run that is not ended early."""
    evaluated = {*range(5, 221, 5), *range(22, 221, 22)}
    return plain_history.plain_history(edge_config(*TRAINING), evaluated.__contains__)


@pytest.fixture(scope="module")
def last_step(rows):
    """The step of the third evaluation in a row that is not better."""
    best, waited = float("inf"), 0
    for row in rows:
        if row.test_loss < best - 0.01:
            best, waited = row.test_loss, 0
        elif (waited := waited + 1) == 3:
            return row.step
    raise AssertionError("the losses of the test always get better")


@pytest.fixture(scope="module")
def expected(last_step):
    return plain_state(edge_config(*TRAINING, f"training.max_steps={last_step}"))


@pytest.mark.first_case
@pytest.mark.parametrize("kind", ["two workers", "chain of three", "inverted"])
async def test_it_ends_after_the_evaluation_that_decides(kind, tmp_path, rows, last_step, expected):
    shown = []
    async with running_trainers() as servers:
        flags = [*TRAINING, *ENDS, *flags_of(kind, addresses_of(servers), tmp_path), *permitted(kind, "mlp")]
        config = edge_config(*flags, "checkpoints.location=none", f"output.directory={tmp_path / 'out'}")
        listening = Listening(lambda now: shown.append((now.steps, now.total_steps)))
        result = await run_training(config, listening, result_writer(config))
    assert 20 < last_step < 200
    assert result.summary.steps == last_step
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["steps"] == last_step
    assert plain_history.of(result.history) == [row for row in rows if row.step <= last_step]
    assert shown[-1][0] == last_step
    assert_same_bits(expected, result.module.state_dict())


async def test_a_resumed_run_decides_by_the_rows_of_all_its_processes(tmp_path, last_step, expected):
    async with running_trainer(f"checkpoints.location={tmp_path / 'trainer'}") as server:
        kept = [f"checkpoints.location={tmp_path / 'edge'}", f"trainer.address={server.address}"]
        config = edge_config(*TRAINING, *ENDS, *kept)
        for number in count():
            shutdown, seen = Shutdown(), []

            def stop_soon(now, shutdown=shutdown, seen=seen):
                seen.append(now.steps)
                if len(seen) == 12:
                    shutdown.drain()

            resume = Resume() if number else None
            try:
                result = await run_training(config, Listening(stop_soon), resume=resume, shutdown=shutdown)
            except StoppedError:
                continue
            break
    assert number > 2
    assert result.summary.steps == last_step
    assert_same_bits(expected, result.module.state_dict())


async def test_a_run_that_has_ended_early_only_writes_its_results_where_they_were_not(tmp_path, last_step, expected):
    def failing(_result):
        raise StorageError("the disk is full")

    async with running_trainer(f"checkpoints.location={tmp_path / 'trainer'}") as server:
        kept = [f"checkpoints.location={tmp_path / 'edge'}", f"trainer.address={server.address}"]
        config = edge_config(*TRAINING, *ENDS, *kept)
        with pytest.raises(StorageError, match="the trained model is kept"):
            await run_training(config, write_result=failing)
    seen = []
    done = await run_training(config, Listening(lambda now: seen.append((now.steps, now.total_steps))), resume=Resume())
    assert seen == [(last_step, last_step)], "no step was done again"
    assert_same_bits(expected, done.module.state_dict())
    assert sessions_folder(config).folders() == []


async def test_it_may_go_on_where_a_resumed_run_is_told_to_be_more_patient(tmp_path, last_step):
    def failing(_result):
        raise StorageError("the disk is full")

    longer = last_step + 7
    async with running_trainer(f"checkpoints.location={tmp_path / 'trainer'}") as server:
        kept = [f"checkpoints.location={tmp_path / 'edge'}", f"trainer.address={server.address}"]
        most = [f"training.max_steps={longer}", "checkpoints.every_steps=10"]
        with pytest.raises(StorageError, match="the trained model is kept"):
            await run_training(edge_config(*TRAINING, *ENDS, *kept, *most), write_result=failing)
        patient = "training.early_stop={patience=100}"
        done = await run_training(edge_config(*TRAINING, patient, *kept, *most), resume=Resume())
    assert done.summary.steps == longer
    assert_same_bits(plain_state(edge_config(*TRAINING, f"training.max_steps={longer}")), done.module.state_dict())


async def test_a_loss_that_is_no_number_gets_no_better(monkeypatch):
    reads = FlatDigits.__getitem__
    monkeypatch.setattr(FlatDigits, "__getitem__", lambda digits, index: (reads(digits, index)[0] * float("nan"), 0))
    async with running_trainer() as server:
        flags = [*TRAINING, "training.early_stop={patience=2}", "training.on_nan=warn", "checkpoints.location=none"]
        result = await run_training(edge_config(*flags, f"trainer.address={server.address}"))
    assert result.summary.steps == 10


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["data.test=none"], "data.test is left out, so there are none"),
        (['training.early_stop={metric="f1"}'], 'early_stop.metric is "f1", which is not computed'),
        (["training.early_stop={patience=0}"], "patience"),
        (['training.metrics=["f1"]', 'training.early_stop={metric="f1"}'], "mode is left out; say which is better"),
    ],
)
def test_what_cannot_be_followed_is_refused_in_a_sentence(flags, said):
    given = [flag for flag in TRAINING if flag != TEST or "data.test=none" not in flags]
    flags = [flag for flag in flags if flag != "data.test=none"]
    with pytest.raises(ConfigError, match=said):
        edge_config(*given, *ENDS, *flags)


def test_an_end_that_no_evaluation_could_bring_is_refused():
    for follows in ('training.early_stop={metric="loss"}', 'training.schedule={name="plateau"}'):
        with pytest.raises(ConfigError, match=r"none before the end; set training\.evaluate_every_epochs or"):
            edge_config(*MLP, TEST, follows, "training.evaluate_every_epochs=0")


async def test_an_accuracy_of_labels_that_are_no_classes_is_refused_before_a_trainer_is_asked():
    flags = [
        *MLP,
        'data.train={factory="tests.support.samples:FlatDigits"}',
        'training.early_stop={metric="accuracy"}',
        "training.loss=mse",
    ]
    with pytest.raises(ConfigError, match="the labels are no class for each sample"):
        await run_training(
            edge_config(*flags, TEST, 'data.collate="tests.integration.training.test_early_stop:one_hot"')
        )


@pytest.mark.parametrize("judged", ["digits", "numbers"])
async def test_an_accuracy_is_followed_by_what_the_labels_of_the_test_set_are(judged):
    """Mixed labels of training do not matter, and numbers to test on are no classes."""
    mixed = 'data.batch_transform="tests.integration.training.test_early_stop:softened"'
    flags = [*MLP, 'data.train={factory="tests.support.samples:FlatDigits"}', "training.max_steps=2"]
    flags += ['training.early_stop={metric="accuracy"}', "deployment.cut=4", "trainers=[]"]
    if judged == "digits":
        result = await run_training(edge_config(*flags, TEST, mixed))
        assert result.summary.accuracy is not None
    else:
        numbers = 'data.test={factory="tests.integration.training.test_early_stop:OneHotDigits"}'
        with pytest.raises(ConfigError, match="the labels are no class for each sample"):
            await run_training(edge_config(*flags, numbers))


def softened(inputs, labels):
    """A batch whose labels are shares of classes, as of mixup."""
    import torch

    return inputs, torch.nn.functional.one_hot(labels, 10).float() * 0.9 + 0.01


class OneHotDigits(FlatDigits):
    """Digits to test on, whose labels are shares of classes."""

    def __init__(self):
        super().__init__("test")

    def __getitem__(self, index):
        import torch

        image, label = super().__getitem__(index)
        return image, torch.nn.functional.one_hot(torch.tensor(label), 10).float()


def one_hot(items):
    """A batch of digits whose labels are as many numbers as the output."""
    import torch

    inputs, labels = torch.utils.data.default_collate(items)
    return inputs, torch.nn.functional.one_hot(labels, 10).float()
