"""Every choice of `[data]` that decides what a batch has: the plain loop's bits, under every placement and after any stop."""

from functools import cache

import pytest

from edge_agent.sessions.resuming import Resume
from edge_agent.training.shutdown import Shutdown
from isthmus import run_training
from shared.errors import ExitCode, StoppedError
from tests.support import plain_history
from tests.support.commands import agent_fails
from tests.support.experiments import MODELS, OPTIMIZERS
from tests.support.iterated import DigitsByState
from tests.support.killed_ten_times import train_with_kills
from tests.support.placement_kinds import RANGES, SHARED, addresses_of, flags_of, permitted, running_trainers
from tests.support.plain import assert_same_bits, plain_state
from tests.support.plain_tiles import plain_tiles_state
from tests.support.running import Listening, edge_config, running_trainer
from tests.support.samples import FlatDigits

pytestmark = pytest.mark.usefixtures("one_thread")

STEPS = 50  # of 22 in an epoch
SAMPLES, ITERATED = "tests.support.samples", "tests.support.iterated"
CHOICES = {
    "mixup": ['data.batch_transform="tests.support.batches:mixup"'],
    "sampler": ['data.sampler="tests.support.batches:rare_first"'],
    "weights": ['data.sample_weights="tests.support.batches:mostly_small"'],
    "batches": ['data.batch_sampler="tests.support.batches:by_light"'],
    "sampler, skip": [
        f'data.train={{factory="{SAMPLES}:Torn"}}',
        'data.on_error="skip"',
        'data.sampler="tests.support.batches:rare_first"',
    ],
    "skip": [f'data.train={{factory="{SAMPLES}:Torn"}}', 'data.on_error="skip"'],
    "iterable": [f'data.train={{factory="{ITERATED}:DigitsInTurn"}}', "data.steps_per_epoch=22"],
    "iterable, state": [f'data.train={{factory="{ITERATED}:DigitsByState"}}', "data.steps_per_epoch=22"],
}
TRAINING = [
    *MODELS["mlp"],
    f"training.optimizer={OPTIMIZERS['adamw']}",
    f'data.test={{factory="{SAMPLES}:FlatDigits", kwargs={{split="test"}}}}',
    "data.batch_size=64",
    f"training.max_steps={STEPS}",
    "training.evaluate_every_steps=20",
    "training.evaluate_every_epochs=0",
]
OF_THEIR_OWN = ("mixup", "batches")
"""Choices that change what crosses links: labels of several classes, and batches of any size."""
KILLED = ("mixup", "batches", "sampler, skip")
"""Choices whose runs no test of `tests/chaos` kills."""
every_choice = pytest.mark.parametrize("choice", CHOICES)


def slowly(some):
    """Give a test all choices, of which these are slow. The others are left to `make test-full`."""
    cases = [pytest.param(choice, marks=pytest.mark.slow if choice in some else pytest.mark.full) for choice in CHOICES]
    return pytest.mark.parametrize("choice", cases)


def chosen(choice, *more):
    return [*TRAINING, *CHOICES[choice], *more]


@cache
def plain(choice):
    """Return the rows and the weights of the plain loop."""
    return plain_history.plain_run(edge_config(*chosen(choice)), {20, 40, STEPS}.__contains__)


def assert_plain(choice, result):
    rows, state = plain(choice)
    assert_same_bits(state, result.module.state_dict())
    assert plain_history.of(result.history) == rows


def placed():
    """Every choice under every kind of placement, of which the slow ones have each choice and each kind."""
    for row, choice in enumerate(CHOICES):
        for column, kind in enumerate((*RANGES, *SHARED)):
            is_slow = choice in OF_THEIR_OWN or (column - row) % 4 == 0
            yield pytest.param(choice, kind, marks=pytest.mark.slow if is_slow else pytest.mark.full)


@every_choice
async def test_two_workers_equal_the_plain_loop(choice):
    async with running_trainer() as server:
        flags = chosen(choice, "deployment.cut=2", "checkpoints.location=none", f"trainer.address={server.address}")
        result = await run_training(edge_config(*flags))
    assert_plain(choice, result)


@pytest.mark.parametrize(("choice", "kind"), [*placed()])
async def test_every_placement_equals_one_process(choice, kind, tmp_path):
    async with running_trainers() as servers:
        flags = chosen(choice, *flags_of(kind, addresses_of(servers), tmp_path), *permitted(kind, "mlp"))
        config = edge_config(*flags, "checkpoints.location=none")
        result = await run_training(config)
    expected = plain_tiles_state(config) if kind in SHARED else plain(choice)[1]
    assert_same_bits(expected, result.module.state_dict())


async def trained_with_stops(tmp_path, flags, stops):
    """A run that another process goes on with after each of these steps."""
    async with running_trainer(f"checkpoints.location={tmp_path / 'trainer'}") as server:
        kept = [f"checkpoints.location={tmp_path / 'edge'}", "checkpoints.every_steps=7", "deployment.cut=2"]
        config = edge_config(*flags, *kept, f"trainer.address={server.address}")
        for stop in stops:
            shutdown = Shutdown()

            def on_progress(now, stop=stop, shutdown=shutdown):
                if now.steps == stop:
                    shutdown.drain()

            with pytest.raises(StoppedError):
                await run_training(config, Listening(on_progress), resume=Resume(), shutdown=shutdown)
        return await run_training(config, resume=Resume())


@every_choice
async def test_a_run_that_is_stopped_in_an_epoch_goes_on_with_the_same_samples(choice, tmp_path):
    assert_plain(choice, await trained_with_stops(tmp_path, chosen(choice), [9, 30]))


async def test_what_an_epoch_has_had_is_not_drawn_again_where_there_is_a_state(tmp_path, monkeypatch):
    monkeypatch.setattr(DigitsByState, "drawn", 0)
    await trained_with_stops(tmp_path, chosen("iterable, state"), [20, 42])
    tried, ahead = 3 * 4, 2 * 3  # batches, in three processes, of which two stop; to draw again would take 40 more
    assert STEPS + tried <= DigitsByState.drawn / 64 <= STEPS + tried + ahead


@slowly(KILLED)
def test_a_run_that_is_killed_ten_times_has_the_bits_and_rows_of_one_that_is_not(choice, tmp_path):
    assert_plain(choice, train_with_kills(chosen(choice), STEPS, tmp_path, seed=choice))


@slowly(
    {*CHOICES} - {"sampler", "skip", "weights"}
)  # "sampler, skip" has both, and weights are drawn by as a sampler is
async def test_worker_processes_give_the_same_batches(choice):
    async with running_trainer() as server:
        flags = chosen(choice, "data.workers=1", "checkpoints.location=none", f"trainer.address={server.address}")
        result = await run_training(edge_config(*flags))
    assert_same_bits(plain(choice)[1], result.module.state_dict())


async def test_what_cannot_be_read_is_counted_in_the_history_whatever_stops(tmp_path):
    whole = await trained_with_stops(tmp_path / "whole", chosen("skip"), [])
    stopped = await trained_with_stops(tmp_path / "stopped", chosen("skip"), [15, 31])
    counts = [row.skipped for row in whole.history]
    assert [row.skipped for row in stopped.history] == counts
    assert counts == sorted(counts)
    assert 10 < counts[0] < counts[-1], "15 of the samples cannot be read, in each epoch"


def test_too_many_samples_that_cannot_be_read_are_one_sentence():
    agent_fails(
        ExitCode.DATA,
        "more samples cannot be read than data.max_skipped, 0, allows; the last: sample 5 of Torn cannot be read: OSError: "
        "photos/5.png is torn",
        flags=[*CHOICES["skip"], "data.max_skipped=0"],
    )


async def test_a_table_in_a_file_is_trained_on_as_its_numbers_are(tmp_path):
    path = written_digits(tmp_path)
    async with running_trainer() as server:
        more = [f'data.train={{table="{path}", label="digit"}}', "deployment.cut=2", "checkpoints.location=none"]
        result = await run_training(edge_config(*TRAINING, *more, f"trainer.address={server.address}"))
    assert_same_bits(plain_state(edge_config(*TRAINING)), result.module.state_dict())


def written_digits(folder):
    digits = FlatDigits()
    lines = [",".join([*(f"p{place}" for place in range(64)), "digit"])]
    for index in range(len(digits)):
        pixels, digit = digits[index]
        lines.append(",".join([*map(repr, pixels.tolist()), str(digit)]))
    (folder / "digits.csv").write_text("\n".join(lines) + "\n")
    return folder / "digits.csv"


def test_a_row_that_is_no_sample_is_named_before_anything_is_dialled(tmp_path):
    path = written_digits(tmp_path)
    path.write_text(path.read_text() + "1,2,3\n")
    train = f'data.train={{table="{path}", label="digit"}}'
    says = f"{path}: row 1439: it has 3 cells, and the first row names 65 columns"
    agent_fails(ExitCode.DATA, says, flags=[train, "training.max_steps=1"])
    agent_fails(
        ExitCode.CONFIG,
        "data.train: table has no key labels; it has label, ",
        flags=[train.replace("label=", "labels=")],
    )
    agent_fails(
        ExitCode.CONFIG,
        "data.train: table is given without label; add label = …",
        flags=[f'data.train={{table="{path}"}}'],
    )


def test_a_test_set_has_to_be_whole():
    agent_fails(
        ExitCode.DATA,
        "sample 5 of Torn cannot be read: OSError: photos/5.png is torn",
        flags=[*CHOICES["skip"], f'data.test={{factory="{SAMPLES}:Torn"}}'],
    )


def test_what_an_iterable_set_cannot_have_is_one_sentence():
    says = "DigitsInTurn can only be iterated; set data.steps_per_epoch to the steps of an epoch"
    agent_fails(ExitCode.CONFIG, says, flags=CHOICES["iterable"][:1])
