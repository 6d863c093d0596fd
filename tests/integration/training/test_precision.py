"""Training in bfloat16: the results are those of one process under autocast, and features have half the bytes."""

import pytest
from typer.testing import CliRunner

from edge_agent.experiment.experiment import Experiment
from edge_agent.experiment.placement_report import report_on
from edge_agent.main import app
from edge_agent.replaying.replay import replay
from edge_agent.replaying.run_record import read_record, record_path
from isthmus import run_training
from shared.errors import ConfigError, ExitCode
from tests.support.commands import agent_fails
from tests.support.experiments import flags
from tests.support.placement_kinds import addresses_of, flags_of, permitted, running_trainers
from tests.support.plain import assert_same_bits, plain_state
from tests.support.running import edge_config, running_trainer, train_with

pytestmark = pytest.mark.usefixtures("one_thread")
SHORT = 'training.precision="bf16"'
STEPS = "training.max_steps=12"


@pytest.mark.first_case
@pytest.mark.parametrize("policy", ["replay", "stash"])
@pytest.mark.parametrize("model", [pytest.param("cnn", marks=pytest.mark.slow), "mlp", "tied"])
async def test_a_cut_changes_no_bit(model, policy):
    chosen = [*flags(model, "adamw"), SHORT, STEPS, f'deployment.backward="{policy}"']
    async with running_trainer() as server:
        for cut in (1, 3):
            result = await train_with(server, *chosen, f"deployment.cut={cut}")
            assert_same_bits(plain_state(edge_config(*chosen)), result.module.state_dict())


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["chain of three", pytest.param("labels stay", marks=pytest.mark.slow)])
async def test_nor_does_another_placement(kind, tmp_path):
    chosen = [*flags("cnn", "adam"), SHORT, STEPS]
    async with running_trainers() as servers:
        result = await run_training(edge_config(*chosen, *flags_of(kind, addresses_of(servers), tmp_path)))
    assert_same_bits(plain_state(edge_config(*chosen)), result.module.state_dict())
    differs = plain_state(edge_config(*flags("cnn", "adam"), STEPS))
    with pytest.raises(AssertionError, match="differ: "):
        assert_same_bits(differs, result.module.state_dict())


@pytest.mark.slow
async def test_raw_features_and_error_gradients_have_half_the_bytes():
    chosen = [*flags("cnn", "sgd"), STEPS, "deployment.cut=2", "deployment.codec=raw", "deployment.downlink_codec=raw"]
    async with running_trainer() as server:
        whole = (await train_with(server, *chosen)).summary
        half = (await train_with(server, *chosen, SHORT)).summary
    assert half.bytes_down * 2 == whole.bytes_down
    labels = 2 * half.bytes_up - whole.bytes_up
    assert 0 < labels < whole.bytes_up / 100


def test_another_precision_is_refused_by_name():
    agent_fails(ExitCode.CONFIG, 'training.precision is "fp8"; it must be', flags=['training.precision="fp8"'])


MIXED = [
    ("two workers", '{edge="fp32", near="bf16"}'),
    pytest.param("labels stay", '{edge="bf16", near="fp16"}', marks=pytest.mark.slow),
    pytest.param("chain of three", '{near="bf16", far="fp16"}', marks=pytest.mark.slow),
    pytest.param("samples divided", '{edge="bf16", near="bf16"}', marks=pytest.mark.slow),
]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "precision"), MIXED)
async def test_a_precision_for_each_worker_is_recorded_and_repeated_to_the_same_bits(kind, precision, tmp_path):
    out = tmp_path / "out"
    record = ["output.record=true", f"output.directory={out}", "deployment.staleness=2", "data.batch_size=64"]
    chosen = [*flags("cnn", "adam"), *record, f"training.precision={precision}", "training.epochs=3", STEPS]
    async with running_trainers() as servers:
        placed = [*flags_of(kind, addresses_of(servers), tmp_path), *permitted(kind, "cnn")]
        result = await run_training(edge_config(*chosen, *placed), write_result=lambda done: done.write(out))
    assert replay(read_record(record_path(out, result.summary.session)), out / "model.safetensors") == 12


@pytest.mark.slow
async def test_what_crosses_has_the_width_of_its_maker():
    chosen = [*flags("cnn", "sgd"), STEPS, "deployment.cut=2", "deployment.codec=raw", "deployment.downlink_codec=raw"]
    async with running_trainer() as server:
        found = {}
        for precision in ("fp32", "bf16", '{edge="bf16"}', '{trainer="bf16"}'):
            result = await train_with(server, *chosen, f"training.precision={precision}")
            found[precision] = result.summary.bytes_up, result.summary.bytes_down
    assert found['{edge="bf16"}'] == found["bf16"]
    assert found['{trainer="bf16"}'] == found["fp32"] != found["bf16"]


@pytest.mark.slow
async def test_the_command_foretells_the_bytes(tmp_path):
    chosen = [*flags("cnn", "sgd"), STEPS, "data.batch_size=64", 'training.precision={edge="bf16", near="fp32"}']
    async with running_trainers() as servers:
        config = edge_config(*chosen, *flags_of("labels stay", addresses_of(servers), tmp_path))
        summary = (await run_training(config)).summary
    transfers = report_on(Experiment(config)).transfers
    up = sum(one.bytes for one in transfers if one.crossing.sender == "edge")
    down = sum(one.bytes for one in transfers if one.crossing.receiver == "edge")
    assert (12 * up, 12 * down) == (summary.bytes_up, summary.bytes_down)


@pytest.mark.parametrize(
    ("precision", "says"),
    [
        ("{}", "training.precision is {}; it must be one of fp32, bf16, fp16, or a table with one for each worker"),
        ('{edge="fp8"}', 'training.precision is { edge = "fp8" }; it must be one of fp32, bf16, fp16, or a table'),
        ('{gpu="bf16"}', "training.precision names 'gpu', which is not configured; it may name edge, trainer"),
    ],
)
def test_a_table_of_precisions_that_cannot_be_is_refused(precision, says):
    agent_fails(ExitCode.CONFIG, says, flags=[f"training.precision={precision}"])


def test_there_is_no_profile_of_several_precisions(tmp_path):
    mixed = 'training.precision={edge="bf16"}'
    agent_fails(
        ExitCode.CONFIG, "engine.profile is set and training.precision differs", flags=[mixed, "engine.profile=p"]
    )
    refused = CliRunner().invoke(app, ["profile", f"--out={tmp_path}/p.json", f"--set={mixed}"]).exception
    assert isinstance(refused, ConfigError)
    assert "a profile is measured in one" in str(refused)


def test_workers_that_share_a_block_need_one(tmp_path):
    addresses = dict.fromkeys(("near", "far"), "127.0.0.1:1")
    placed = [*flags_of("samples divided", addresses, tmp_path), *permitted("samples divided", "cnn")]
    chosen = [*flags("cnn", "sgd"), "data.batch_size=64", 'training.precision={near="bf16"}', *placed]
    with pytest.raises(ConfigError, match="is shared by 'edge' and 'near', which compute in different precisions"):
        Experiment(edge_config(*chosen))
