"""A run that was recorded is repeated to the same bits, however late its gradients were; what is not the same is named."""

import json

import pytest
from safetensors.torch import load_file, save_file

from edge_agent.main import app
from edge_agent.replaying.replay import replay
from edge_agent.replaying.run_record import read_record, record_path
from isthmus import run_training
from shared.errors import ConfigError, DifferentError, ExitCode
from tests.integration.placements.test_changes import ALONE, Changing, document
from tests.support.commands import command
from tests.support.experiments import OPTIMIZERS, flags
from tests.support.placement_kinds import BATCH_SIZE, RANGES, addresses_of, flags_of, permitted, running_trainers
from tests.support.running import agent_process, edge_config, run_agent, trainer_process

STEPS, K = 40, 3
MANY_STEPS = 160
MANY = [f"training.max_steps={MANY_STEPS}", "training.epochs=10", "training.evaluate_every_epochs=0"]
"""Enough for four changes, each of which may first admit trainers beside training."""
LOSSY = ('deployment.codec="uniform8"', 'deployment.downlink_codec="bf16"')
RISING = ('deployment.codec=[[0, "mbq2"], [1, "mbq4"]]', 'deployment.downlink_codec="topk4"')
MILESTONES = '{name="multistep", milestones=[2]}'
AVERAGED = ("training.ema={decay=0.9}",)
PREDICTED = ('deployment.staleness_correction="prediction"',)
LONG_MOMENTUM = (*PREDICTED, f"training.optimizer={OPTIMIZERS['nesterov']}")
PLAIN_SGD = (*PREDICTED, 'training.optimizer={name="sgd", learning_rate=0.05}')
"""Late gradients give it the momentum that it has not otherwise."""
CLIPPED = (*PREDICTED, 'training.optimizer={name="sgd", momentum=0.9, clip_norm=0.5, clip="model"}')
"""The updates of all blocks come late."""
CASES = [
    ("two workers", "fickle", "replay", LOSSY),
    pytest.param("chain of three", "cnn", "replay", LOSSY, marks=pytest.mark.slow),
    pytest.param("two workers", "cnn", "replay", RISING, marks=pytest.mark.slow),
    pytest.param("chain of four", "mlp", "stash", (), marks=pytest.mark.full),
    pytest.param("labels stay", "tied", "replay", ('deployment.codec="uniform4-channel"',), marks=pytest.mark.slow),
    pytest.param("there and back", "cnn", "stash", LOSSY, marks=pytest.mark.full),
    pytest.param("chain of three", "cnn", "replay", ('training.precision="fp16"', *LOSSY), marks=pytest.mark.slow),
    pytest.param("labels stay", "mlp", "replay", ('training.precision="fp16"',), marks=pytest.mark.full),
    ("samples divided", "mlp", "replay", LOSSY),
    ("two workers", "cnn", "replay", (*LONG_MOMENTUM, *AVERAGED)),
    pytest.param("chain of three", "tied", "stash", (*PREDICTED, *LOSSY), marks=pytest.mark.slow),
    pytest.param("three tiers", "cnn", "replay", PREDICTED, marks=pytest.mark.slow),
    pytest.param("three tiers", "fickle", "replay", (), marks=pytest.mark.slow),
    ("labels stay", "mlp", "replay", CLIPPED),
    pytest.param("chain of three", "cnn", "stash", CLIPPED, marks=pytest.mark.slow),
    pytest.param("labels stay", "tied", "stash", LONG_MOMENTUM, marks=pytest.mark.slow),
]
pytestmark = pytest.mark.usefixtures("one_thread")


def recorded(model, folder, *more):
    return [
        *flags(model, "adamw"),
        f"data.batch_size={BATCH_SIZE}",
        f"training.max_steps={STEPS}",
        "training.epochs=10",
        f"deployment.staleness={K}",
        "output.record=true",
        f"output.directory={folder}",
        "data.drop_last=false",
        *more,
    ]


def record_of(folder):
    (path,) = folder.glob("*.record.jsonl")
    return path


@pytest.mark.first_case
@pytest.mark.parametrize(("kind", "model", "backward", "codecs"), CASES)
async def test_the_record_of_a_run_leads_to_the_same_bits(kind, model, backward, codecs, tmp_path):
    out = tmp_path / "out"
    async with running_trainers() as servers:
        placed = [*flags_of(kind, addresses_of(servers), tmp_path), *permitted(kind, model)]
        config = edge_config(*recorded(model, out, *placed, *codecs, f'deployment.backward="{backward}"'))
        result = await run_training(config, write_result=writing(out))
    record = read_record(record_path(out, result.summary.session))
    assert any(stretch.orders for stretch in record.stretches), "no worker was ever ahead, so nothing was repeated"
    assert replay(record, out / "model.safetensors") == STEPS


def writing(folder):
    return lambda result: result.write(folder)


CLIPPED_TOGETHER = (
    'training.optimizer={name="adamw", learning_rate=0.003, clip_norm=0.3, clip="model"}',
    "training.accumulate_batches=2",
)


HALF = ('training.precision="fp16"', "training.accumulate_batches=2")
MIXED = ('training.precision={edge="bf16", far="fp16"}',)


@pytest.mark.slow
@pytest.mark.parametrize(
    "updates",
    [
        pytest.param((), id="by block"),
        pytest.param((*PREDICTED, *AVERAGED), id="with weights that are predicted, and averaged"),
        pytest.param(PLAIN_SGD, id="with a momentum while gradients come late"),
        pytest.param(CLIPPED_TOGETHER, id="together", marks=pytest.mark.full),
        pytest.param(HALF, id="in float16", marks=pytest.mark.full),
        pytest.param(MIXED, id="each in its own precision", marks=pytest.mark.full),
    ],
)
async def test_changes_of_placement_are_repeated_where_they_were(updates, tmp_path):
    out, kinds = tmp_path / "out", ["chain of three", "two workers", "labels stay", "there and back"]
    changing = Changing([document(RANGES[kind]) for kind in kinds[1:]] + [document(ALONE)])
    async with running_trainers() as servers:
        placed = flags_of("chain of four", addresses_of(servers), tmp_path)
        config = edge_config(*recorded("cnn", out, *placed, *LOSSY), *updates, *MANY)
        await run_training(config, changing, write_result=writing(out))
    record = read_record(record_of(out))
    assert len(record.stretches) == len(kinds) + 1
    assert replay(record, out / "model.safetensors") == MANY_STEPS
    assert f"{MANY_STEPS} steps, and the same weights" in command(app, "replay", str(out))


@pytest.mark.full
@pytest.mark.parametrize("correction", [(), PREDICTED, PLAIN_SGD])
def test_a_run_that_was_killed_and_went_on_is_repeated_as_if_it_had_not_been(correction, tmp_path):
    out, steps = tmp_path / "out", 400
    kept = [f"checkpoints.location={tmp_path / 'edge'}", "checkpoints.every_steps=20", "compute.threads=1"]
    chosen = [
        *recorded("mlp", out, *kept, "deployment.cut=2", *LOSSY, *correction),
        f"training.max_steps={steps}",
        "training.epochs=50",
    ]
    with trainer_process("compute.threads=1", f"checkpoints.location={tmp_path / 'trainer'}") as (_, address):
        chosen += [f"trainer.address={address}"]
        with agent_process(*chosen) as (agent, said):
            said.first_event("checkpoint at every worker", least_step=60)
            agent.kill()
            agent.wait()
        done = run_agent("run", "--resume", *(f"--set={flag}" for flag in chosen))
        assert done.returncode == ExitCode.OK, done.stderr
    assert '{"back":' in record_of(out).read_text()
    assert f"{steps} steps, and the same weights" in command(app, "replay", str(out))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "key"),
    [
        (['deployment.codec="uniform8-stochastic"'], "codec"),
        (['deployment.downlink_codec=[[0, "fp32"], [3, "uniform4-stochastic"]]'], "downlink_codec"),
        (['deployment.codec="mbq-adaptive"', f"training.schedule={MILESTONES}"], "downlink_codec"),
    ],
)
def test_a_codec_that_rounds_at_random_is_refused_with_the_configuration(flags, key):
    edge_config(*flags)
    with pytest.raises(ConfigError, match=rf"output\.record is true and deployment\.{key} comes to .*-stochastic"):
        edge_config(*flags, "output.record=true", "output.directory=out")


async def test_what_is_not_the_same_is_named(tmp_path):
    out = tmp_path / "out"
    async with running_trainers() as servers:
        placed = flags_of("chain of three", addresses_of(servers), tmp_path)
        await run_training(edge_config(*recorded("mlp", out, *placed, *AVERAGED)), write_result=writing(out))
    model, record, average = out / "model.safetensors", record_of(out), out / "ema.safetensors"
    weights, lines = load_file(model), record.read_text().splitlines()

    name = next(iter(weights))
    save_file({**weights, name: weights[name] + 1}, model)
    with pytest.raises(DifferentError, match=f"ends with another '{name}'") as parted:
        replay(read_record(record), model)
    assert parted.value.exit_code == ExitCode.DIFFERENT
    save_file(weights, model)

    averages = load_file(average)
    save_file({**averages, name: averages[name] + 1}, average)
    with pytest.raises(DifferentError, match=rf"ends with another '{name}', .* than {average} holds"):
        replay(read_record(record), model)
    save_file(averages, average)

    told = [json.loads(line) for line in lines]
    at = next(number for number, line in enumerate(told) if isinstance(line, list) and line[0] == 20 and line[2])
    told[at][2] = (float.fromhex(told[at][2]) * 1.5).hex()
    record.write_text("".join(json.dumps(line) + "\n" for line in told))
    with pytest.raises(DifferentError, match="parts from the run at step 20"):
        replay(read_record(record), model)

    in_turn = [[*line[:3], []] if isinstance(line, list) else line for line in map(json.loads, lines)]
    record.write_text("".join(json.dumps(line) + "\n" for line in in_turn))
    with pytest.raises(DifferentError):  # the order decides the weights, or equal weights would say nothing of it
        replay(read_record(record), model)

    del told[at]
    record.write_text("".join(json.dumps(line) + "\n" for line in told))
    with pytest.raises(DifferentError, match="says nothing of step 20"):
        read_record(record)
    told[0]["session"]["protocol_version"] -= 1
    record.write_text(json.dumps(told[0]))
    with pytest.raises(ConfigError, match="is of another protocol than"):
        read_record(record)
    record.unlink()
    with pytest.raises(ConfigError, match=r"output\.record"):
        read_record(record)
