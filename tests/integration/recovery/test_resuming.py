"""Going on with a run: from what its record holds, under the settings that may change, and never from zero without a word."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from contextlib import asynccontextmanager

import pytest
import torch
from safetensors.torch import load_file, save_file
from structlog.testing import capture_logs

from edge_agent.experiment.experiment import Experiment
from edge_agent.sessions import resuming
from edge_agent.sessions.resuming import Resume, choose_session
from edge_agent.sessions.session_record import SessionRecord
from edge_agent.sessions.stored_session import StoredSession, sessions_folder
from edge_agent.training.shutdown import Shutdown
from isthmus import run_training
from shared.errors import ConfigError, DataError, ExitCode, StoppedError
from shared.version import PROTOCOL_VERSION
from tests.support.commands import MLP, assert_one_sentence, spoken
from tests.support.experiments import OPTIMIZERS
from tests.support.plain import assert_same_bits, plain_state
from tests.support.running import (
    ROOT,
    Listening,
    StandardError,
    edge_config,
    run_agent,
    running_trainer,
    trainer_process,
)
from tests.support.samples import FlatDigits

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]

STOPPED_AT = 10
TRAINING = [*MLP, "training.epochs=1", "training.max_steps=20", "training.evaluate_every_epochs=0"]
SETTINGS = f"""
[model]
factory = "shared.model.zoo:mlp"
kwargs = {{ hidden = 24 }}

[data]
train = {{ factory = "tests.support.samples:FlatDigits" }}

[training]
seed = 7
epochs = 40
evaluate_every_epochs = 0

[deployment]
cut = 1

[compute]
threads = 1

[checkpoints]
every_steps = {STOPPED_AT}

[log]
format = "json"
"""


@asynccontextmanager
async def stopped_run(tmp_path, *more):
    """The flags of a run that was stopped at step 10 of 20, or just after it; its trainer is still there."""
    async with running_trainer(f"checkpoints.location={tmp_path / 'trainer'}") as server:
        flags = [*TRAINING, *more, f"checkpoints.location={tmp_path / 'edge'}", f"trainer.address={server.address}"]
        stop = Shutdown()

        def stop_there(progress):
            if progress.steps == STOPPED_AT:
                stop.drain()

        with pytest.raises(
            StoppedError, match=r"at step 1\d of 20; `edge-agent run --resume --session=\w{32}` goes on"
        ):
            await run_training(edge_config(*flags), Listening(stop_there), shutdown=stop)
        yield flags


@pytest.fixture
async def stopped(tmp_path):
    """See `stopped_run`."""
    async with stopped_run(tmp_path) as flags:
        yield flags


async def gone_on(flags, *more, seen=None):
    """The run that goes on, and the steps that it reported."""
    steps = [] if seen is None else seen
    result = await run_training(
        edge_config(*flags, *more), Listening(lambda now: steps.append(now.steps)), resume=Resume()
    )
    return result, steps


@pytest.mark.parametrize(
    "change",
    [
        ["training.evaluate_every_epochs=5", "data.workers=1", 'training.on_nan="warn"'],
        ['data.test={factory="tests.support.samples:FlatDigits"}'],
        ["output.directory=/nowhere", "log.level=error", "deployment.staleness_correction=none"],
    ],
)
async def test_what_decides_no_result_may_change(stopped, change):
    result, steps = await gone_on(stopped, *change)
    assert min(step for step in steps if step) >= STOPPED_AT
    assert_same_bits(plain_state(edge_config(*TRAINING)), result.module.state_dict())


@pytest.mark.parametrize(
    "change",
    [
        ["training.evaluate_every_steps=5"],
        ['data.test={factory="tests.support.samples:FlatDigits", kwargs={split="train"}}'],
    ],
)
async def test_evaluations_that_decide_the_rate_stay_as_they_are(tmp_path, change):
    tested = 'data.test={factory="tests.support.samples:FlatDigits", kwargs={split="test"}}'
    followed = ['training.schedule={name="plateau"}', "training.evaluate_every_steps=10"]
    async with stopped_run(tmp_path, *followed, tested) as flags:
        with pytest.raises(ConfigError, match="cannot go on with other settings"):
            await gone_on(flags, *change)
        await gone_on(flags, 'training.on_nan="warn"')


NAMED = '{name="tests.support.models.optimizers:Nadam", learning_rate=0.003, kwargs={betas=[0.8, 0.99]}}'
CYCLE = 'training.schedule.name="onecycle"'
WEIGHTED = f"training.loss.kwargs={{weight={[0.1 + place for place in range(10)]}}}"


@pytest.mark.parametrize(
    "chosen", [*([each] for each in OPTIMIZERS.values()), [NAMED, CYCLE, WEIGHTED]], ids=[*OPTIMIZERS, "named"]
)
async def test_the_state_of_every_optimizer_is_in_a_checkpoint(tmp_path, chosen):
    flags_of_it = [f"training.optimizer={chosen[0]}", *chosen[1:]]
    async with stopped_run(tmp_path, *flags_of_it) as flags:
        result, steps = await gone_on(flags)
    assert min(step for step in steps if step) >= STOPPED_AT
    assert_same_bits(plain_state(edge_config(*TRAINING, *flags_of_it)), result.module.state_dict())


@pytest.mark.parametrize("change", [WEIGHTED, CYCLE, f"training.optimizer={NAMED}"])
async def test_another_recipe_is_refused(stopped, change):
    with pytest.raises(ConfigError, match="cannot go on with other settings"):
        await gone_on(stopped, change)


async def test_what_may_change_the_last_bits_is_told(stopped):
    with capture_logs() as logs:
        await gone_on(stopped, "compute.deterministic=false")
    told = [entry["changed"] for entry in logs if entry["event"] == "the session goes on with other settings"]
    assert told == ["compute.deterministic is false and was true"]


def test_a_path_means_the_same_file_in_a_record_and_in_a_configuration(tmp_path, monkeypatch):
    settings = [*TRAINING, f"checkpoints.location={tmp_path / 'edge'}"]
    monkeypatch.chdir(tmp_path)
    save_file(Experiment(edge_config(*settings)).chain.module.state_dict(), "start.safetensors")
    config = edge_config(*settings, "training.start_from=start.safetensors")
    folder = sessions_folder(config)
    record = SessionRecord.begun_now("a" * 32, Experiment(config))
    stored = StoredSession(record, folder.folder(record.session_id), 1)
    stored.begin()
    stored.release()
    assert choose_session(folder, lambda _: config, record.session_id).session_id == record.session_id


async def test_a_session_of_another_protocol_is_refused(stopped, monkeypatch):
    monkeypatch.setattr(resuming, "PROTOCOL_VERSION", PROTOCOL_VERSION + 1)
    says = f"was begun under protocol {PROTOCOL_VERSION}, and this agent speaks {PROTOCOL_VERSION + 1}, .* `edge-agent forget"
    with pytest.raises(ConfigError, match=says):
        await gone_on(stopped)
    result, steps = await gone_on(stopped, "training.seed=8", "training.max_steps=2")
    assert (steps[0], result.summary.steps) == (0, 2), "another experiment begins as ever"


async def test_results_that_are_kept_are_written_by_a_later_protocol_too(tmp_path, monkeypatch):
    def failing(_result):
        raise OSError("no space is left")

    async with running_trainer(f"checkpoints.location={tmp_path / 'trainer'}") as server:
        flags = [*TRAINING, f"checkpoints.location={tmp_path / 'edge'}", f"trainer.address={server.address}"]
        with pytest.raises(OSError, match="no space"):
            await run_training(edge_config(*flags), write_result=failing)
        monkeypatch.setattr(resuming, "PROTOCOL_VERSION", PROTOCOL_VERSION + 1)
        with pytest.raises(ConfigError, match="was begun under protocol"):
            await gone_on(flags, "training.max_steps=21")
        result, _ = await gone_on(flags)
    assert_same_bits(plain_state(edge_config(*TRAINING)), result.module.state_dict())


async def test_a_run_may_become_longer(stopped):
    longer = ["training.epochs=2", "training.max_steps=50"]
    result, steps = await gone_on(stopped, *longer)
    assert result.summary.steps == 50
    assert min(step for step in steps if step) >= STOPPED_AT
    assert_same_bits(plain_state(edge_config(*TRAINING, *longer)), result.module.state_dict())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("training.optimizer.learning_rate=0.5", r"training\.optimizer\.learning_rate is 0\.5 and was 0\.05"),
        ("data.batch_size=16", r"data\.batch_size is 16 and was 32"),
        ("deployment.cut=2", r"deployment\.cut is 2 and was 1.*"),
        ('deployment.codec="uniform8"', r"deployment\.codec is \"uniform8\" and was \"fp32\""),
        ("training.max_steps=5", r"has done 1\d already"),
    ],
)
async def test_what_decides_the_result_is_named_with_both_values(stopped, change, said):
    with pytest.raises(ConfigError, match=said):
        await gone_on(stopped, change)


async def test_a_dataset_of_another_length_is_refused(stopped, monkeypatch):
    monkeypatch.setattr(FlatDigits, "__len__", lambda _digits: 1436)
    with pytest.raises(DataError, match=r"was begun with 1437 samples to train on, and data\.train has 1436 now"):
        await gone_on(stopped)


async def test_another_experiment_begins_at_its_own_first_step(stopped):
    result, steps = await gone_on(stopped, "training.seed=8", "training.max_steps=2")
    assert (steps[0], result.summary.steps) == (0, 2)


async def test_weights_of_a_finished_run_are_the_start_of_the_next(tmp_path):
    stays = 'training.optimizer={name="sgd",learning_rate=1e-30}'  # a step that changes no weight
    async with running_trainer() as server:
        flags = [*TRAINING, f"trainer.address={server.address}", "checkpoints.location=none"]
        await run_training(edge_config(*flags), write_result=lambda done: done.write(tmp_path))
        trained = load_file(tmp_path / "model.safetensors")
        start = f"training.start_from={tmp_path / 'model.safetensors'}"
        again = await run_training(edge_config(*flags, "training.max_steps=1", stays, start))
        assert_same_bits(trained, again.module.state_dict())
        first = next(iter(trained))
        damaged = {
            f"it lacks '{first}'": {name: tensor for name, tensor in trained.items() if name != first},
            "it holds 'zz'": {**trained, "zz": torch.zeros(1)},
            "must be torch.float32": {**trained, first: torch.zeros(1)},
        }
        for said, weights in damaged.items():
            save_file(weights, tmp_path / "model.safetensors")
            with pytest.raises(ConfigError, match=rf"training\.start_from: .* does not fit the model: .*{said}"):
                await run_training(edge_config(*flags, start))


def agent(folder, *arguments):
    """An agent process of a user whose home is `folder`."""
    return subprocess.Popen(
        [sys.executable, "-m", "edge_agent.main", *arguments],
        cwd=ROOT,
        env={**os.environ, "XDG_STATE_HOME": str(folder / "state")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def interrupted(folder, *arguments, at_least):
    """Let an agent train until so many steps are kept, and press Ctrl-C; the first step and the command that it printed."""
    process = agent(folder, *arguments)
    said = StandardError(process)
    try:
        said.first_event("checkpoint at every worker", least_step=at_least)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == ExitCode.INTERRUPTED
    finally:
        process.kill()
        said.join()
    went_back = [event["step"] for event in said.heard if event["event"] == "went back to a checkpoint"]
    last = spoken(list(said.last_lines)[-1])
    return went_back, re.fullmatch(r"edge-agent: interrupted at step \d+ of \d+; `(.*)` goes on", last)[1]


def test_the_command_that_is_printed_goes_on_as_it_stands_and_so_does_resume_alone(tmp_path):
    (tmp_path / "mine.toml").write_text(SETTINGS)
    with trainer_process("compute.threads=1", f"checkpoints.location={tmp_path / 'trainer'}") as (_, address):
        begun = [
            "run",
            f"--config={tmp_path / 'mine.toml'}",
            f"--trainer={address}",
            "--set=training.max_steps=1000000",
        ]
        begun += [f"--output={tmp_path / 'run'}", "--set=training.epochs=100000", "--set=trainer.token=hush"]
        went_back, command = interrupted(tmp_path, *begun, at_least=20)
        assert went_back == []
        assert "--config" in command
        assert "hush" not in command
        (first,), _ = interrupted(tmp_path, *shlex.split(command)[1:], at_least=40)
        assert first >= 20
        stopped_at = 200
        process = agent(tmp_path, "run", "--resume", f"--set=training.max_steps={stopped_at}")
        out, err = process.communicate(timeout=240)
        assert process.returncode == 0, err
        assert out.splitlines()[-1] == f"summary: {tmp_path / 'run' / 'summary.json'}", "the record knows where"
        went_back = [json.loads(line) for line in err.splitlines() if '"went back to a checkpoint"' in line]
        assert went_back[0]["step"] >= 40
    expected = plain_state(edge_config(*kept_settings(), f"training.max_steps={stopped_at}"))
    assert_same_bits(expected, load_file(tmp_path / "run" / "model.safetensors"))


def kept_settings():
    """Return the settings that `SETTINGS` decide, as flags."""
    kwargs = "model.kwargs={hidden=24}"
    return [*MLP, kwargs, "training.seed=7", "training.epochs=100000", "training.evaluate_every_epochs=0"]


def test_a_finished_run_that_is_wanted_longer_is_refused_and_one_that_a_reboot_starts_again_is_not(tmp_path):
    """A service always begins with --resume. The weights of the finished run are the way to more epochs."""
    output = tmp_path / "run"
    model = output / "model.safetensors"
    flags = [*MLP, "training.epochs=1", "training.evaluate_every_epochs=0", f"checkpoints.location={tmp_path / 'edge'}"]

    def ran(*more):
        return run_agent("run", "--resume", f"--output={output}", *(f"--set={flag}" for flag in [*flags, *more]))

    with trainer_process("compute.threads=1", f"checkpoints.location={tmp_path / 'trainer'}") as (_, address):
        flags.append(f"trainer.address={address}")
        first = ran()
        assert first.returncode == 0, first.stderr
        assert first.stderr.count("no session to resume; a new one begins") == 1
        steps, weights = json.loads((output / "summary.json").read_text())["steps"], model.read_bytes()
        says = [f"after {steps} steps", f"cannot go on to {5 * steps}", f"training.start_from={model}"]
        assert_one_sentence("edge-agent", ran("training.epochs=5"), ExitCode.CONFIG, *says)
        assert model.read_bytes() == weights
        again = ran()
        assert again.returncode == 0, again.stderr
        assert model.read_bytes() == weights
        for change in ("training.epochs=2", f"training.start_from={model}"):
            flags.append(change)
        longer = ran()
        assert longer.returncode == 0, longer.stderr
        assert json.loads((output / "summary.json").read_text())["steps"] == 2 * steps


def test_the_first_ctrl_c_ends_an_agent_that_reaches_no_trainer(tmp_path):
    flags = ["log.format=json", "trainer.connect_timeout_seconds=3600", "trainer.address=192.0.2.1:9"]
    process = agent(tmp_path, "run", *(f"--set={flag}" for flag in [*MLP, *flags]))
    said = StandardError(process)
    try:
        said.first_event("connecting")
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == ExitCode.INTERRUPTED
    finally:
        process.kill()
        said.join()
    assert spoken("".join(said.last_lines).splitlines()[-1]).startswith("edge-agent: interrupted before the first step")
