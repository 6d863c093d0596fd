"""A run that has ended goes on with more epochs, and two runs are one: the weights, the optimizer, the history, the best."""

import pytest
from safetensors.torch import load_file

from edge_agent.run import result_writer
from edge_agent.sessions.resuming import Resume
from edge_agent.sessions.stored_session import sessions_folder
from edge_agent.training.history import read_history
from isthmus import run_training
from shared.errors import ConfigError, StorageError
from tests.support import plain_history
from tests.support.placement_kinds import addresses_of, flags_of, permitted, running_trainers
from tests.support.plain import assert_same_bits, plain_state
from tests.support.running import Listening, cut_at, edge_config, running_trainer

pytestmark = pytest.mark.usefixtures("one_thread")

PER_EPOCH = 22
TRAINING = [
    'model.factory="shared.model.zoo:mlp"',
    "model.kwargs={depth=4}",
    'data.train={factory="tests.support.samples:FlatDigits"}',
    'data.test={factory="tests.support.samples:FlatDigits", kwargs={split="test"}}',
    "data.batch_size=64",
    'training.optimizer={name="adamw", learning_rate=0.003, weight_decay=0.01}',
    'training.schedule={name="multistep", every="step", milestones=[15, 30], gamma=0.5, warmup_steps=5}',
]
KEPT = "checkpoints.keep_finished=true"


def epochs(count):
    return f"training.epochs={count}"


@pytest.fixture(scope="module")
def expected():
    return plain_state(edge_config(*TRAINING, epochs(3)))


@pytest.mark.first_case
@pytest.mark.parametrize("kind", ["two workers", "chain of three", "inverted"])
async def test_two_runs_are_one(kind, tmp_path, expected):
    out = tmp_path / "out"
    async with running_trainers(tmp_path / "trainers") as servers:
        flags = [*TRAINING, KEPT, "training.keep_best={}", *permitted(kind, "mlp")]
        flags += [*flags_of(kind, addresses_of(servers), tmp_path), f"checkpoints.location={tmp_path / 'edge'}"]
        flags += [f"output.directory={out}", "checkpoints.keep=1"]
        for count in (1, 2, 3):
            seen = []
            config = edge_config(*flags, epochs(count))
            result = await run_training(
                config,
                Listening(lambda now, seen=seen: seen.append(now.steps)),
                result_writer(config),
                resume=Resume(),
            )
            assert min(step for step in seen if step) >= (count - 1) * PER_EPOCH, "no step was done again"
    assert_same_bits(expected, load_file(out / "model.safetensors"))
    rows = plain_history.plain_history(edge_config(*TRAINING, epochs(3)), {22, 44, 66}.__contains__)
    assert plain_history.of(result.history) == plain_history.of(read_history(out)) == rows
    assert [row.seconds for row in result.history] == sorted(row.seconds for row in result.history)
    best = min(rows, key=lambda row: row.test_loss).step
    assert_same_bits(
        plain_state(edge_config(*TRAINING, epochs(3), f"training.max_steps={best}")),
        load_file(out / "best.safetensors"),
    )
    assert len([*(out / "earlier").iterdir()]) == 2, "the shorter results are kept aside"


async def test_it_goes_on_after_moves_with_other_processes_at_both_ends(tmp_path, expected):
    flags = [*TRAINING, KEPT, f"checkpoints.location={tmp_path / 'edge'}", "deployment.cut=1"]
    deployers = []

    def on_progress(now):
        if now.steps == 10:
            cut_at(deployers[-1], 3)

    async with running_trainer(f"checkpoints.location={tmp_path / 'trainer'}") as server:
        await run_training(
            edge_config(*flags, epochs(2), f"trainer.address={server.address}"),
            Listening(on_progress, deployers.append),
        )
    async with running_trainer(f"checkpoints.location={tmp_path / 'trainer'}") as server:
        config = edge_config(*flags, epochs(3), f"trainer.address={server.address}")
        result = await run_training(config, resume=Resume())
    assert result.summary.edge_blocks == 3
    assert_same_bits(expected, result.module.state_dict())


async def test_one_of_the_same_length_has_the_same_result(tmp_path):
    async with running_trainer(f"checkpoints.location={tmp_path / 'trainer'}") as server:
        flags = [*TRAINING, KEPT, epochs(1), f"checkpoints.location={tmp_path / 'edge'}"]
        out = tmp_path / "out"
        config = edge_config(*flags, f"trainer.address={server.address}", f"output.directory={out}")
        first = await run_training(config, write_result=result_writer(config))
        again = await run_training(config, write_result=result_writer(config), resume=Resume())
        assert not (out / "earlier").exists(), "it is the same result"
        other = await run_training(config, write_result=result_writer(config))
        assert (out / "earlier").exists()
    assert again.summary.session == first.summary.session != other.summary.session
    assert_same_bits(first.module.state_dict(), again.module.state_dict())
    assert again.history == first.history


async def test_a_result_that_was_written_late_can_go_on_too(tmp_path, expected):
    def failing(_result):
        raise StorageError("the disk is full")

    async with running_trainer(f"checkpoints.location={tmp_path / 'trainer'}") as server:
        flags = [*TRAINING, KEPT, f"checkpoints.location={tmp_path / 'edge'}", f"trainer.address={server.address}"]
        with pytest.raises(StorageError, match="the trained model is kept"):
            await run_training(edge_config(*flags, epochs(2)), write_result=failing)
        await run_training(edge_config(*flags, epochs(2)), resume=Resume())
        result = await run_training(edge_config(*flags, epochs(3)), resume=Resume())
    assert_same_bits(expected, result.module.state_dict())


async def test_one_that_ended_early_goes_on_without_that(tmp_path, expected):
    async with running_trainer(f"checkpoints.location={tmp_path / 'trainer'}") as server:
        flags = [*TRAINING, KEPT, f"checkpoints.location={tmp_path / 'edge'}", f"trainer.address={server.address}"]
        early = "training.early_stop={patience=1, min_delta=5.0}"
        first = await run_training(edge_config(*flags, epochs(3), early))
        again = await run_training(edge_config(*flags, epochs(3), early), resume=Resume())
        result = await run_training(edge_config(*flags, epochs(3)), resume=Resume())
    assert first.summary.steps == again.summary.steps == 2 * PER_EPOCH
    assert again.history == first.history
    assert_same_bits(expected, result.module.state_dict())


async def test_the_device_keeps_the_one_that_ended_last(tmp_path):
    async with running_trainer(f"checkpoints.location={tmp_path / 'trainer'}") as server:
        flags = [*TRAINING, KEPT, epochs(1), f"checkpoints.location={tmp_path / 'edge'}"]
        flags.append(f"trainer.address={server.address}")
        results = [await run_training(edge_config(*flags, f"training.seed={seed}")) for seed in (1, 2)]
    assert sessions_folder(edge_config(*flags)).folders() == [results[-1].summary.session]


async def test_without_it_nothing_stays_on_either_side(tmp_path):
    async with running_trainer(f"checkpoints.location={tmp_path / 'trainer'}") as server:
        flags = [*TRAINING, epochs(1), f"checkpoints.location={tmp_path / 'edge'}"]
        config = edge_config(*flags, f"trainer.address={server.address}")
        await run_training(config)
        assert sessions_folder(config).folders() == []
        assert not [*(tmp_path / "trainer" / "cloud-trainer").iterdir()]


async def test_a_trainer_that_keeps_nothing_ends_no_run(tmp_path):
    async with running_trainer("checkpoints.location=none") as server:
        flags = [*TRAINING, KEPT, epochs(1), f"checkpoints.location={tmp_path / 'edge'}"]
        config = edge_config(*flags, f"trainer.address={server.address}")
        result = await run_training(config)
    assert result.summary.steps == PER_EPOCH
    assert sessions_folder(config).folders() == []


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["checkpoints.location=none"], "nothing to keep"),
        (['group={name="line", size=2}'], "a group that has ended does not go on"),
    ],
)
def test_what_cannot_be_kept_is_refused_in_a_sentence(flags, said):
    with pytest.raises(ConfigError, match=said):
        edge_config(*TRAINING, KEPT, *flags)


@pytest.mark.parametrize(
    ("more", "lengths"),
    [
        (["training.evaluate_every_epochs=2", 'training.schedule={name="plateau", patience=0, factor=0.5}'], (1, 3)),
        (["training.evaluate_every_epochs=1", "training.accumulate_batches=8"], (1, 2)),
    ],
    ids=["evaluated at an end that is none", "ended within an epoch"],
)
async def test_the_end_of_the_shorter_run_leaves_nothing_in_the_longer_one(more, lengths, tmp_path):
    rates = 'training.optimizer={name="sgd", learning_rate=0.7, momentum=0.5}'
    found = {}
    async with running_trainer(f"checkpoints.location={tmp_path / 'trainer'}") as server:
        for name, each in (("one", lengths[1:]), ("two", lengths)):
            flags = [*TRAINING[:-2], rates, *more, KEPT, f"checkpoints.location={tmp_path / name}", "deployment.cut=1"]
            for count in each:
                config = edge_config(*flags, epochs(count), f"trainer.address={server.address}")
                found[name] = await run_training(config, resume=Resume())
    assert_same_bits(found["one"].module.state_dict(), found["two"].module.state_dict())
    one, two = (plain_history.of(found[name].history) for name in ("one", "two"))
    assert one == two
